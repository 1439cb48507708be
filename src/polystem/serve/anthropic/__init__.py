"""The Messages API, for coding agents that speak Anthropic's protocol: bodies, translation, events, errors, routes."""
