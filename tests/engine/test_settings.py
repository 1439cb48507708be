"""The store of tuned settings: found again for the same model, build and machine; damage is told of, not fatal."""

from __future__ import annotations

import json
from dataclasses import asdict, replace
from pathlib import Path

import pytest

from polystem.engine.settings import TunedEntry, TunedSettings, TunedStore
from polystem.errors import ConfigError

ENTRY = TunedEntry(
    model_sha256="abc",
    build="build 1",
    machine="cpu, 2 of 2 cores",
    settings=TunedSettings(threads=2, flash_attention=False, repack=True, cache_type_k="f16"),
    at_s=1.0,
    measured={"decode_ms": 60.0},
)


@pytest.fixture
def store(tmp_path: Path) -> TunedStore:
    return TunedStore(tmp_path / "folder" / "tuned.json")


def found(store: TunedStore, model_sha256: str = "abc", build: str = "build 1", machine: str = ENTRY.machine) -> object:
    return store.find(model_sha256=model_sha256, build=build, machine=machine)


def test_an_entry_is_found_for_exactly_its_model_build_and_machine(store: TunedStore) -> None:
    store.put(ENTRY)
    assert found(store) == ENTRY
    assert found(store, model_sha256="other") is None
    assert found(store, build="build 2") is None
    assert found(store, machine="cpu, 1 of 2 cores") is None


def test_a_new_entry_replaces_the_old_one_and_no_other(store: TunedStore) -> None:
    other = replace(ENTRY, model_sha256="other")
    newer = replace(ENTRY, settings=TunedSettings(threads=1))
    for entry in (ENTRY, other, newer):
        store.put(entry)
    assert store.entries() == (other, newer)


def test_no_file_is_no_entry_and_no_warning(store: TunedStore, caplog: pytest.LogCaptureFixture) -> None:
    assert store.entries() == ()
    assert not caplog.records


@pytest.mark.parametrize(
    "content", ["{", "[]", "null", '{"version": 2, "entries": []}', '{"version": 1}', "\x00", "[" * 100_000]
)
def test_a_damaged_file_is_told_of_and_written_anew(
    store: TunedStore, caplog: pytest.LogCaptureFixture, content: str
) -> None:
    store.path.parent.mkdir()
    store.path.write_text(content)
    assert store.entries() == ()
    assert "tuned.json is not used" in caplog.text
    store.put(ENTRY)
    assert store.entries() == (ENTRY,)


@pytest.mark.parametrize("settings", [{"threads": "two"}, {"threads": True}, {"repack": 1}, 5, None])
def test_a_damaged_entry_is_told_of_and_the_rest_is_used(
    store: TunedStore, caplog: pytest.LogCaptureFixture, settings: object
) -> None:
    store.path.parent.mkdir()
    damaged = {**asdict(ENTRY), "settings": settings}
    store.path.write_text(json.dumps({"version": 1, "entries": [damaged, asdict(ENTRY), {}]}))
    assert store.entries() == (ENTRY,)
    assert "an entry is not used, it is damaged" in caplog.text


def test_a_setting_of_a_later_version_is_passed_over(store: TunedStore) -> None:
    store.path.parent.mkdir()
    later = {**asdict(ENTRY), "settings": {"threads": 2, "flux": 3}}
    store.path.write_text(json.dumps({"version": 1, "entries": [later]}))
    assert store.entries()[0].settings == TunedSettings(threads=2)


def test_told_are_the_settings_that_were_measured() -> None:
    assert ENTRY.settings.told() == {"threads": 2, "flash_attention": False, "repack": True, "cache_type_k": "f16"}


def test_a_folder_that_cannot_be_written_is_an_error_with_a_hint(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match="cannot write the tuned settings") as caught:
        TunedStore(tmp_path / "file" / "tuned.json").put(ENTRY)
    assert caught.value.hint
