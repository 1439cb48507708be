"""Turns requests into tokens; knows nothing of agents, floors or HTTP."""
