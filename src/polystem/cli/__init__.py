"""Reads the configuration, builds the objects, calls one function, prints."""
