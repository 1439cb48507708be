"""docs/api.md says what the bodies say: every field is on the page, and none that is not there."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from polystem.serve.chat import TemplateBody
from polystem.serve.completion import CompletionBody
from polystem.serve.pool_bodies import PoolBody
from polystem.serve.refused import REFUSED_FIELDS


@pytest.fixture(scope="module")
def sections(repository: Path) -> dict[str, str]:
    page = (repository / "docs" / "api.md").read_text()
    parts = re.split(r"^##+ (.*)$", page, flags=re.MULTILINE)
    return dict(zip(parts[1::2], parts[2::2], strict=True))


def fields_in(text: str) -> set[str]:
    first_cells = re.findall(r"^\| (`.*?) \|", text, re.MULTILINE)
    return {name for cell in first_cells for name in re.findall(r"`(\w+)`", cell)}


def test_every_field_of_a_completion_is_on_the_page(sections: dict[str, str]) -> None:
    told, refused = sections["Chat completions and text completions"].split("Refused by name")
    assert fields_in(told) == {*TemplateBody.model_fields, *CompletionBody.model_fields}
    assert fields_in(refused) == set(REFUSED_FIELDS)


def test_every_field_of_a_pool_is_on_the_page(sections: dict[str, str]) -> None:
    created = sections["Pools"].split("Every pool is told")[0]
    assert fields_in(created) == set(PoolBody.model_fields)


def test_no_refused_field_is_accepted() -> None:
    assert not set(REFUSED_FIELDS) & {*TemplateBody.model_fields, *CompletionBody.model_fields, *PoolBody.model_fields}
