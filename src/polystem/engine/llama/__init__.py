"""The embedded engine: llama.cpp in a child process or a thread, behind the engine seam."""

from polystem.engine.llama.engine import LlamaEngine
from polystem.engine.llama.settings import LlamaSettings

__all__ = ["LlamaEngine", "LlamaSettings"]
