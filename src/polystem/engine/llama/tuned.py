"""Fills the engine settings that the user left open with what `polystem tune` measured here.

Invariant: a setting that the user gave stays as given.
"""

from __future__ import annotations

import logging
from dataclasses import replace

from polystem.engine.llama.native import library_build
from polystem.engine.llama.settings import LlamaSettings
from polystem.engine.machine import this_machine
from polystem.engine.settings import TunedStore

__all__ = ["settle_tuned"]

# These were measured together: where the user gives one of them, the others are not taken either.
_ATTENTION = ("flash_attention", "cache_type_k", "cache_type_v")

_log = logging.getLogger(__name__)


def settle_tuned(settings: LlamaSettings, model_sha256: str, *, store: TunedStore | None = None) -> LlamaSettings:
    """The settings, their open fields filled from the store where this model was tuned with this build and machine."""
    store = store or TunedStore()
    entry = store.find(model_sha256=model_sha256, build=library_build(), machine=this_machine().name)
    if entry is None:
        return settings
    held = {name for name in _ATTENTION if _attention_given(settings)}
    told = {
        name: value
        for name, value in entry.settings.told().items()
        if getattr(settings, name) is None and name not in held
    }
    _log.info("tuned settings in use: %s", ", ".join(f"{name} {value}" for name, value in told.items()) or "none")
    return replace(settings, **told)


def _attention_given(settings: LlamaSettings) -> bool:
    return any(getattr(settings, name) is not None for name in _ATTENTION)
