"""Speaks to an OpenAI-compatible server over HTTP; the one door to aiohttp."""

from polystem.engine.remote.answer import Answer, Attach
from polystem.engine.remote.client import RemoteClient

__all__ = ["Answer", "Attach", "RemoteClient"]
