"""The table of statuses is complete, and so is its page."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator
from pathlib import Path
from typing import get_args

import pytest

from polystem import errors
from polystem.errors import (
    AdmissionRefused,
    AllocationFull,
    CellsExhausted,
    EngineLost,
    EngineRestarting,
    PolystemError,
    PoolLimit,
    PoolNotFound,
    ResizeKind,
    ResizeRefused,
    Saturated,
    SequencesExhausted,
    Unauthorized,
    WindowRefused,
)
from polystem.serve.errors import RESIZE_STATUS, STATUS_OF, error_body, error_headers, status_of


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
    501: {"not_supported_error"},
    503: {"unavailable_error"},
    504: {"timeout_error"},
}


@pytest.mark.parametrize("cls", ALL, ids=lambda cls: cls.__name__)
def test_every_error_has_a_status_that_agrees_with_its_type(cls: type[PolystemError]) -> None:
    error = cls.__new__(cls)
    if isinstance(error, ResizeRefused):
        error.kind = "session_busy"
    status, kind = status_of(error)
    assert kind in TYPE_OF_STATUS[status]
    server_at_fault = issubclass(
        cls, errors.Unavailable | errors.SetupError | errors.RequestTimeout | errors.PoolsDisabled
    )
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
    assert error["message"].startswith("pool 2 admission rejected: floor (floor 15 tokens/s); 3 ahead of it")


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


def full(*, worker: bool) -> AllocationFull:
    return AllocationFull(
        owner="g~polykv-owner-1",
        free_cells=100,
        window_cells=1024,
        needed_cells=300,
        base_free_cells=4096,
        base_cells=8192,
        largest_admissible_cells=3840,
        worker=worker,
    )


def test_a_worker_whose_owner_is_full_is_told_in_the_words_that_clients_parse() -> None:
    body = error_body(full(worker=True))
    error = body["error"]
    pattern = r"session allocation full \(worker of '([^']+)': (\d+) of (\d+) cells free, needs (\d+)\)"
    for text in (error["message"], body["reason"]):
        found = re.search(pattern, text, re.IGNORECASE)
        assert found is not None, text
        assert found.groups() == ("g~polykv-owner-1", "100", "1024", "300")
    assert (error["code"], error["type"]) == (429, "rate_limit_error")
    assert body["largest_admissible"] == error["largest_admissible"] == 3840
    assert error["pressure"] == round(924 / 1024, 4)
    assert error_headers(full(worker=True))["x-context-largest-admissible"] == "3840"


def test_a_session_whose_own_window_is_full_is_told_apart_from_its_worker() -> None:
    for text in (error_body(full(worker=False))["reason"], full(worker=False).message):
        assert re.search(r"session allocation full \('", text)
        assert "worker of" not in text


def test_a_window_that_is_refused_names_the_largest_that_would_do() -> None:
    body = error_body(WindowRefused(num_ctx=65536, num_ctx_min=4608, largest_admissible_cells=0))
    assert "largest admissible 0 < num_ctx_min 4608" in body["error"]["message"]
    assert "largest admissible 0 < num_ctx_min 4608" in body["reason"]
    assert (body["largest_admissible"], body["error"]["largest_admissible"]) == (0, 0)


def test_a_pool_limit_is_told_by_its_reason_too() -> None:
    body = error_body(PoolLimit("owner", limit=8))
    assert body["error"]["code"] == 503
    assert "sub-pool limit reached" in body["reason"]
    assert "release one of 'owner'" in body["error"]["message"]


@pytest.mark.parametrize("kind", get_args(ResizeKind))
def test_every_kind_of_a_refused_resize_has_a_status_that_agrees_with_its_type(kind: ResizeKind) -> None:
    refused = ResizeRefused("no", kind=kind, used_cells=900, window_cells=1024, largest_admissible_cells=256)
    status, type_name = status_of(refused)
    body = error_body(refused)
    assert type_name in TYPE_OF_STATUS[status]
    assert (body["error"]["code"], body["error"]["error_kind"]) == (status, kind)
    assert (body["error"]["used"], body["error"]["window"], body["error"]["cells"]) == (900, 1024, 1024)
    assert ("retry-after" in error_headers(refused)) == (status == 429)


def test_the_kinds_of_a_refused_resize_are_those_that_clients_know() -> None:
    assert {kind: status for kind, (status, _) in RESIZE_STATUS.items()} == {
        "session_not_found": 404,
        "session_closing": 409,
        "session_busy": 409,
        "used_exceeds_window": 409,
        "per_request_session": 409,
        "invalid_num_ctx": 400,
        "above_session_ctx_max": 400,
        "exhausted": 429,
    }
