"""Fits come back as they were put; what is damaged is told of and not used."""

from __future__ import annotations

import json
import logging
import os
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from polystem.capacity.demand import Seen
from polystem.capacity.fits import FitKey, FitStore, StoredFit, fits_path
from polystem.capacity.floor import Demand
from polystem.capacity.step_model import Fit
from polystem.errors import ConfigError

KEY = FitKey("sha", "build 7", "a cpu, 2 of 2 cores", "f16/f16")
FIT = Fit(
    0.02,
    0.004,
    4e-6,
    0.002,
    (1e-3, 1e-4, 1e-7, 1e-4),
    512,
    0.002,
    1e-8,
    1e-9,
    (-0.5, -0.25, 0, 0, -0.125, 0, 0, 0, 0.5, 0),
)
SEEN = Seen(Demand(3.0, 40.0), final_cells=900.0, cells_per_token=1.5, most_streams=12)
STORED = StoredFit(
    KEY,
    "a model",
    FIT,
    SEEN,
    cells_total=8192,
    at_s=1000.0,
    seats_total=200,
)

positive = st.floats(0, 1e6)
signed = st.floats(-1, 1)
all_fits = st.builds(
    Fit,
    *([positive] * 4),
    deviations=st.tuples(*([positive] * 4)),
    samples=st.integers(0, 10**9),
    noise_s=positive,
    per_read_s=positive,
    read_deviation_s=positive,
    correlations=st.tuples(*([signed] * 10)),
)


@pytest.fixture
def store(tmp_path: Path) -> FitStore:
    return FitStore(tmp_path / "below" / "fits.json")


all_demands = st.builds(Demand, positive, st.floats(0.1, 1e6))
all_seen = st.builds(Seen, all_demands, st.none() | positive, st.none() | positive, st.integers(0, 1000))


@given(fit=all_fits, seen=st.none() | all_seen)
def test_a_fit_comes_back_as_it_was_put(tmp_path_factory: pytest.TempPathFactory, fit: Fit, seen: Seen | None) -> None:
    store = FitStore(tmp_path_factory.mktemp("fits") / "fits.json")
    stored = replace(STORED, fit=fit, seen=seen)
    store.put(stored)
    assert FitStore(store.path).find(KEY) == stored


def test_a_file_of_the_first_version_is_read(store: FitStore) -> None:
    old = asdict(STORED)
    old["demand"] = old.pop("seen")["demand"]
    other = asdict(replace(STORED, key=replace(KEY, kv="q8_0/f16")))
    other["demand"] = other.pop("seen") and None
    store.path.parent.mkdir()
    store.path.write_text(json.dumps({"version": 1, "entries": [old, other]}))
    found = store.find(KEY)
    assert found == replace(STORED, seen=Seen(SEEN.demand))
    assert [entry.seen is None for entry in store.entries()] == [False, True]


@pytest.mark.parametrize("part", ["model_sha256", "build", "machine", "kv"])
def test_a_fit_holds_for_exactly_its_key(store: FitStore, part: str) -> None:
    store.put(STORED)
    assert store.find(replace(KEY, **{part: "another"})) is None


def test_a_new_fit_replaces_the_one_with_its_key_and_leaves_the_others(store: FitStore) -> None:
    other = replace(STORED, key=replace(KEY, kv="q8_0/f16"), at_s=1002.0)
    newer = replace(STORED, at_s=1001.0)
    for each in (STORED, newer, other):
        store.put(each)
    assert store.entries() == (newer, other), "oldest first"
    store.put(replace(newer, at_s=1003.0))
    store.put(replace(other, at_s=1001.5))
    assert [entry.at_s for entry in store.entries()] == [1001.5, 1003.0]


def test_no_file_is_no_fit_and_no_complaint(store: FitStore, caplog: pytest.LogCaptureFixture) -> None:
    assert store.entries() == ()
    assert caplog.records == []


@pytest.mark.parametrize("text", ["", "{", "[]", '{"version": 99, "entries": []}', '{"version": 1}', "[" * 100_000])
def test_a_damaged_file_is_told_of_and_not_used(store: FitStore, text: str, caplog: pytest.LogCaptureFixture) -> None:
    store.path.parent.mkdir()
    store.path.write_text(text)
    with caplog.at_level(logging.WARNING):
        assert store.find(KEY) is None
    assert "not used" in caplog.text
    store.put(STORED)
    assert store.find(KEY) == STORED


@pytest.mark.parametrize(
    ("where", "value"),
    [
        (("fit", "base_s"), "soon"),
        (("fit", "base_s"), -1.0),
        (("fit", "base_s"), True),
        (("fit", "noise_s"), float("nan")),
        (("fit", "deviations"), [1.0]),
        (("fit", "samples"), 1.5),
        (("fit", "correlations"), [2.0] * 10),
        (("fit",), None),
        (("key", "machine"), 7),
        (("key",), []),
        (("seen", "demand", "turn_tokens"), 0),
        (("seen", "final_cells"), -1),
        (("seen", "most_streams"), 2.5),
        (("cells_total",), -5),
        (("at_s",), 10**400),
        (("model",), None),
    ],
)
def test_a_damaged_entry_costs_the_others_nothing(
    store: FitStore, where: tuple[str, ...], value: object, caplog: pytest.LogCaptureFixture
) -> None:
    damaged: dict[str, Any] = asdict(STORED)
    part = damaged
    for name in where[:-1]:
        part = part[name]
    part[where[-1]] = value
    whole = replace(STORED, key=replace(KEY, kv="q8_0/f16"))
    store.path.parent.mkdir()
    store.path.write_text(json.dumps({"version": 2, "entries": [damaged, asdict(whole), "nonsense"]}))
    with caplog.at_level(logging.WARNING):
        entries = store.entries()
    assert entries == (whole,)
    assert [record.levelname for record in caplog.records] == ["WARNING"] * 2


def test_a_folder_that_cannot_be_written_is_an_error_with_a_way_out(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match="cannot write the fits") as caught:
        FitStore(tmp_path / "file" / "fits.json").put(STORED)
    assert caught.value.hint is not None
    assert "XDG_STATE_HOME" in caught.value.hint


def test_a_write_that_fails_leaves_the_old_file_and_nothing_beside_it(
    store: FitStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.put(STORED)

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", full)
    with pytest.raises(ConfigError, match="No space left"):
        store.put(replace(STORED, at_s=2000.0))
    assert store.find(KEY) == STORED
    assert [path.name for path in store.path.parent.iterdir()] == ["fits.json"]


def test_fits_are_state_of_the_user(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    assert fits_path().name == "fits.json"
    assert FitStore().path == fits_path()
