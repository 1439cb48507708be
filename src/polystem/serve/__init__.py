"""Speaks HTTP: the OpenAI API and the control plane; translates, never decides."""

from polystem.serve.app import build_app
from polystem.serve.settings import ServeSettings

__all__ = ["ServeSettings", "build_app"]
