"""Speaks HTTP: the OpenAI API and the control plane; translates, never decides."""
