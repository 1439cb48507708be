"""Runs a fleet of agents on one root prompt, each above a floor of tokens a second."""
