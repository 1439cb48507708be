"""docs/api.md says what the bodies say: every field is on the page, and none that is not there."""

from __future__ import annotations

import re
from pathlib import Path
from typing import get_args

import pytest

from polystem.capacity.asks import Reason
from polystem.engine.scripted import ScriptedEngine
from polystem.fleet import Fleet
from polystem.serve import ServeSettings, build_app
from polystem.serve.capacity_bodies import AdmissionBody, CapacityQuery, ElasticBody
from polystem.serve.capacity_shapes import PoolCapacityAnswer, TpsRow
from polystem.serve.chat import ChatBody, TemplateBody
from polystem.serve.completion import CompletionBody
from polystem.serve.errors import RESIZE_STATUS
from polystem.serve.features import ALWAYS, WITH_GATE, WITH_POOLS
from polystem.serve.kv_shapes import AllocationFacts, ClosedAnswer, ErasedAnswer, KvAnswer, PressureFacts, SlotOwner
from polystem.serve.pool_bodies import ForkBody, PoolBody
from polystem.serve.refused import REFUSED_FIELDS
from polystem.serve.shapes import Shape

UNTOLD = {"slot_id", "alloc_key"}


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
    assert fields_in(told) == {*ChatBody.model_fields, *TemplateBody.model_fields, *CompletionBody.model_fields}
    assert fields_in(refused) == set(REFUSED_FIELDS)


def test_every_field_of_a_pool_is_on_the_page(sections: dict[str, str]) -> None:
    created = sections["Pools"].split("Every pool is told")[0]
    assert fields_in(created) == set(ForkBody.model_fields)
    assert set(PoolBody.model_fields) < set(ForkBody.model_fields)


def test_every_field_of_an_admission_and_of_elastic_is_on_the_page(sections: dict[str, str]) -> None:
    about_admission, rest = sections["Floor and capacity"].split("`GET /polykv/pools/{pool_id}/capacity` takes")
    about_capacity, about_elastic = rest.split("`POST /elastic` changes")
    assert fields_in(about_admission) == set(AdmissionBody.model_fields)
    assert fields_in(about_elastic) == set(ElasticBody.model_fields)
    told = fields_in(about_capacity)
    assert told == set(PoolCapacityAnswer.model_fields) - {"pool_id"}
    assert all(
        f"`{name}`" in about_capacity
        for name in (*CapacityQuery.model_fields, *TpsRow.model_fields)
        if name not in UNTOLD
    )


def test_every_route_is_on_the_page(sections: dict[str, str]) -> None:
    paths = build_app(Fleet(ScriptedEngine()), ServeSettings()).openapi()["paths"]
    served = {f"{method.upper()} {path}" for path, methods in paths.items() for method in methods}
    assert set(re.findall(r"`((?:GET|POST|DELETE) /[^`]*)`", sections["Routes"])) == served


def test_every_reason_of_a_refusal_is_on_the_page(sections: dict[str, str]) -> None:
    told = re.findall(r"^\| `([a-z ,]+)` \|", sections["When there is no room"], re.MULTILINE)
    assert set(told) - {"reason", "place", "pressure"} == set(get_args(Reason))


def test_every_feature_is_on_the_page(sections: dict[str, str]) -> None:
    assert fields_in(sections["Features"]) - {"feature"} == {*ALWAYS, *WITH_POOLS, *WITH_GATE}


@pytest.mark.parametrize("shape", [AllocationFacts, PressureFacts, KvAnswer, SlotOwner, ClosedAnswer, ErasedAnswer])
def test_every_field_of_the_account_of_cells_is_on_the_page(shape: type[Shape], sections: dict[str, str]) -> None:
    about = sections["Windows"]
    assert [name for name in shape.model_fields if f"`{name}`" not in about] in ([], ["id_slot"])


def test_every_kind_of_a_refused_resize_is_on_the_page(sections: dict[str, str]) -> None:
    rows = re.findall(r"^\| (`[a-z_`, ]+`) \| (\d{3}) \|", sections["Windows"], re.MULTILINE)
    told = {kind: int(status) for kinds, status in rows for kind in re.findall(r"`(\w+)`", kinds)}
    assert told == {kind: status for kind, (status, _) in RESIZE_STATUS.items()}


def test_no_refused_field_is_accepted() -> None:
    assert not set(REFUSED_FIELDS) & {*ChatBody.model_fields, *CompletionBody.model_fields, *PoolBody.model_fields}
