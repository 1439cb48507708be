"""Turns records into one self-contained HTML file."""
