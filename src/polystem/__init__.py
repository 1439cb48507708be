"""Runs a fleet of agents on one root prompt, each above a floor of tokens a second."""

__version__ = "0.1.0"
