"""Reports and errors survive the way between the processes."""

from __future__ import annotations

import pickle

import pytest

from polystem.engine.llama.wire import TOKENS, Job, Snapshot, error_fields, error_of, pack, unpack
from polystem.engine.protocol import Placement
from polystem.errors import (
    BadRequest,
    CellsExhausted,
    ConfigError,
    Conflict,
    ConstraintError,
    EngineBuildError,
    ModelFileError,
    PolystemError,
    SequencesExhausted,
)
from polystem.messages import Sampling


def test_a_report_comes_back_as_it_was() -> None:
    end = ("stop", 9, 2, 4, 4, 0.1, 0.2, 0.3, None)
    events = [(3, TOKENS, (17,), "é", (17, "é", -0.5, ((1, "a", -0.7),)), None), (4, TOKENS, (1,), "", None, end)]
    snapshot = Snapshot(9, 2, 1, 0, 0, 1, 0, 5, 8, ((1, 7),), (2,), (1.5, 0.01, 2, 256, 0, 0.02), (1.0, 2.0, 3.0, 4.0))
    assert unpack(pack(events, snapshot)) == (events, snapshot)
    assert unpack(pack([], None)) == ([], None)


def test_a_job_can_be_pickled_with_its_sampling() -> None:
    job = Job(1, "answer", (1, 2), Placement(5, 6, 7), Sampling(logit_bias={3: 1.5}, seed=4), ("END",), 9)
    assert pickle.loads(pickle.dumps(job, 5)) == job


@pytest.mark.parametrize(
    "error",
    [
        CellsExhausted(needed_cells=3, free_cells=1, total_cells=9),
        SequencesExhausted(limit=256),
        Conflict("a turn is running on branch 4"),
        ConstraintError("no such rule"),
        BadRequest("the prompt is empty"),
        ConfigError("cells is 3", hint="more"),
        ModelFileError("not a GGUF file", hint="convert it"),
        EngineBuildError("the library is missing"),
    ],
)
def test_an_error_comes_back_of_its_own_kind(error: PolystemError) -> None:
    again = error_of(error_fields(error))
    assert type(again) is type(error)
    assert (again.message, again.hint) == (error.message, error.hint)


def test_a_foreign_error_becomes_a_build_error_that_names_it() -> None:
    again = error_of(error_fields(ValueError("odd")))
    assert isinstance(again, EngineBuildError)
    assert "ValueError: odd" in again.message
