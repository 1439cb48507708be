"""The table of statuses is complete, and so is its page."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from pathlib import Path

import pytest

from polystem import errors
from polystem.errors import EngineRestarting, PolystemError, PoolNotFound, Saturated, Unauthorized
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


@pytest.mark.parametrize(("retry_after_s", "told"), [(0.0, "1"), (1.0, "1"), (1.01, "2"), (60.0, "60")])
def test_retry_after_is_whole_seconds_and_never_early(retry_after_s: float, told: str) -> None:
    assert error_headers(Saturated("full", retry_after_s=retry_after_s)) == {"retry-after": told}


def test_a_401_says_how_to_authenticate() -> None:
    assert error_headers(Unauthorized("no")) == {"www-authenticate": "Bearer"}
