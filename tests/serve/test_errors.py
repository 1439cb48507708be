"""The table of statuses is complete, and so is its page."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from pathlib import Path

import pytest

from polystem import errors
from polystem.errors import (
    AdmissionRefused,
    CellsExhausted,
    EngineLost,
    EngineRestarting,
    PolystemError,
    PoolNotFound,
    Saturated,
    SequencesExhausted,
    Unauthorized,
)
from polystem.serve.errors import STATUS_OF, error_body, error_headers, status_of


def tree(root: type[PolystemError] = PolystemError) -> Iterator[type[PolystemError]]:
    yield root
    for child in root.__subclasses__():
        yield from tree(child)


ALL = [cls for cls in tree() if cls.__module__ == errors.__name__]
TYPE_OF_STATUS = {
    400: {"invalid_request_error", "exceed_context_size_error"},
    401: {"authentication_error"},
    404: {"not_found_error"},
    409: {"conflict_error"},
    413: {"request_too_large_error"},
    429: {"rate_limit_error"},
    500: {"server_error"},
    503: {"unavailable_error"},
    504: {"timeout_error"},
}


@pytest.mark.parametrize("cls", ALL, ids=lambda cls: cls.__name__)
def test_every_error_has_a_status_that_agrees_with_its_type(cls: type[PolystemError]) -> None:
    error = cls.__new__(cls)
    status, kind = status_of(error)
    assert kind in TYPE_OF_STATUS[status]
    server_at_fault = issubclass(cls, errors.Unavailable | errors.SetupError | errors.RequestTimeout)
    assert (status >= 500) == (server_at_fault or cls is PolystemError)


def test_the_table_names_only_errors_of_the_tree() -> None:
    assert set(STATUS_OF) <= set(ALL)
    assert len(ALL) == len([each for each in vars(errors).values() if inspect.isclass(each)])


def test_the_page_shows_the_table(repository: Path) -> None:
    page = (repository / "docs" / "api.md").read_text()
    for cls, (status, kind) in STATUS_OF.items():
        assert f"| {cls.__name__} | {status} | `{kind}` |" in page


def test_a_body_has_the_shape_of_openai_and_a_code_equal_to_the_status() -> None:
    assert error_body(PoolNotFound(7)) == {
        "error": {
            "message": "no pool has the id 7; GET /polykv/pools lists those that exist",
            "type": "not_found_error",
            "param": "pool_id",
            "code": 404,
        }
    }


def test_a_503_has_a_reason_and_a_hint_is_told() -> None:
    assert error_body(EngineRestarting("killed"))["reason"] == "engine_restarting"
    assert error_body(PolystemError("no", hint="do that"))["error"]["hint"] == "do that"


@pytest.mark.parametrize(
    ("retry_after_s", "told_s", "told_ms"),
    [
        (-1.0, "1", "1"),
        (0.0, "1", "1"),
        (0.0401, "1", "41"),
        (1.0, "1", "1000"),
        (1.01, "2", "1010"),
        (60.0, "60", "60000"),
        (900.0, "120", "120000"),
    ],
)
def test_retry_after_is_whole_seconds_never_early_and_never_beyond_what_clients_obey(
    retry_after_s: float, told_s: str, told_ms: str
) -> None:
    headers = error_headers(Saturated("full", retry_after_s=retry_after_s))
    assert headers == {"retry-after": told_s, "retry-after-ms": told_ms}


def test_a_503_tells_whole_seconds_alone() -> None:
    assert error_headers(EngineLost("no build")) == {"retry-after": "60"}


def test_a_refused_worker_is_told_why_its_place_and_when_to_come_back() -> None:
    body = error_body(AdmissionRefused(reason="floor", retry_after_s=4.25, place=3, floor_tps=15.0, pool_id=2))
    error = body["error"]
    assert body["reason"] == error["reason"] == "floor"
    assert (error["code"], error["type"], error["param"]) == (429, "rate_limit_error", None)
    assert (error["place"], error["retry_after_s"]) == (3, 4.25)
    assert error["message"].startswith("pool 2 admission rejected: floor")


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (CellsExhausted(needed_cells=9, free_cells=1, total_cells=8), "kv headroom exhausted"),
        (SequencesExhausted(limit=4), "seats"),
    ],
)
def test_a_full_cache_says_so_in_the_gates_words_and_keeps_no_place(error: Saturated, reason: str) -> None:
    body = error_body(error)
    assert (body["reason"], body["error"]["reason"], body["error"]["place"]) == (reason, reason, None)


def test_a_401_says_how_to_authenticate() -> None:
    assert error_headers(Unauthorized("no")) == {"www-authenticate": "Bearer"}
