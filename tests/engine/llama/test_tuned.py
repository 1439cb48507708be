"""Tuned settings reach the engine: open fields are filled, given ones stay."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from polystem.engine.llama import LlamaEngine, LlamaSettings
from polystem.engine.llama.modelfile import sha256_of
from polystem.engine.llama.native import library_build
from polystem.engine.llama.tuned import settle_tuned
from polystem.engine.machine import this_machine
from polystem.engine.settings import TunedEntry, TunedSettings, TunedStore

OPEN = LlamaSettings(Path("model.gguf"))
TUNED = TunedSettings(
    threads=3,
    threads_batch=5,
    flash_attention=False,
    micro_batch_tokens=128,
    repack=True,
    cache_type_k="f32",
    cache_type_v="f32",
)


@pytest.fixture
def store(tmp_path: Path) -> TunedStore:
    store = TunedStore(tmp_path / "tuned.json")
    store.put(TunedEntry("abc", library_build(), this_machine().name, TUNED, 0.0, {}))
    return store


def test_open_settings_are_filled_from_the_store(store: TunedStore) -> None:
    settings = settle_tuned(OPEN, "abc", store=store)
    assert {name: getattr(settings, name) for name in TUNED.told()} == TUNED.told()


def test_settings_that_were_given_stay(store: TunedStore) -> None:
    settings = settle_tuned(replace(OPEN, threads=1, repack=False), "abc", store=store)
    assert settings.threads == 1
    assert settings.repack is False
    assert settings.threads_batch == 5


def test_attention_and_cache_types_are_taken_together_or_not_at_all(store: TunedStore) -> None:
    settings = settle_tuned(replace(OPEN, flash_attention=True), "abc", store=store)
    assert settings.flash_attention is True
    assert settings.cache_type_k == OPEN.cache_type_k
    assert settings.threads == 3


def test_another_model_is_not_tuned(store: TunedStore) -> None:
    assert settle_tuned(OPEN, "other", store=store) == OPEN


@pytest.mark.native
@pytest.mark.anyio
async def test_an_engine_runs_with_what_was_tuned_for_its_model(
    bundled_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    tuned = TunedSettings(threads=1, threads_batch=1, flash_attention=False, micro_batch_tokens=128, repack=False)
    TunedStore().put(TunedEntry(sha256_of(bundled_model), library_build(), this_machine().name, tuned, 0.0, {}))
    engine = LlamaEngine(LlamaSettings(bundled_model, cells=512, sequences=4, process="thread"))
    await engine.start()
    try:
        assert {name: engine.info.settings[name] for name in tuned.told()} == tuned.told()
    finally:
        await engine.aclose()
