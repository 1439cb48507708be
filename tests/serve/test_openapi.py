"""The OpenAPI description is true: schemathesis holds a running app against it, with a fixed seed."""

# schemathesis leaves the arguments of its generic types open:
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false

from __future__ import annotations

from typing import Any, TypeAlias, cast

import pytest
import schemathesis
from hypothesis import HealthCheck, given, settings
from schemathesis import GenerationMode
from schemathesis.specs.openapi import checks

from polystem.engine.scripted import ScriptedEngine
from polystem.fleet import Fleet
from polystem.serve import ServeSettings, build_app
from tests.serve.living import LivingApp
from tests.serve.served import serving

Case: TypeAlias = "schemathesis.Case[Any]"
Operation: TypeAlias = "schemathesis.APIOperation[Any, Any, Any, Any]"
ALL_HEALTH_CHECKS = cast("list[HealthCheck]", list(HealthCheck))
accepts_right_data = cast("schemathesis.CheckFunction", checks.positive_data_acceptance)


def operations() -> list[tuple[str, str, GenerationMode]]:
    """Every route with data that fits its description, and with data that does not where there is any."""
    paths = build_app(Fleet(ScriptedEngine()), ServeSettings()).openapi()["paths"]
    told = [(path, method.upper(), each) for path, methods in paths.items() for method, each in methods.items()]
    right = [(path, method, GenerationMode.POSITIVE) for path, method, _ in told]
    wrong = [
        (path, method, GenerationMode.NEGATIVE)
        for path, method, each in told
        if "requestBody" in each or "{pool_id}" in path
    ]
    return right + wrong


# Here fields depend on each other or on the model's vocabulary, or are whole numbers (932.0 is one to a schema, not to
# us): 400 is a right answer.
MORE_RULES = {
    *("/v1/chat/completions", "/v1/completions", "/apply-template", "/detokenize"),
    *("/polykv/pools", "/polykv/pools/{pool_id}/fork", "/polykv/pools/{pool_id}/admission", "/elastic"),
    *("/v1/messages", "/v1/messages/count_tokens"),
    *("/sessions/resize", "/sessions/{session_id}/resize", "/kv/sessions/{session_id}/resize"),
}


@pytest.fixture(scope="module")
def description() -> schemathesis.BaseSchema:
    return schemathesis.openapi.from_asgi("/openapi.json", LivingApp())


@pytest.mark.parametrize(("path", "method", "mode"), operations())
def test_the_app_does_what_its_description_says(
    description: schemathesis.BaseSchema, path: str, method: str, mode: GenerationMode
) -> None:
    operation = cast(Operation, description[path][method])

    @given(case=operation.as_strategy(mode))
    @settings(max_examples=10, derandomize=True, deadline=None, database=None, suppress_health_check=ALL_HEALTH_CHECKS)
    def holds(case: Case) -> None:
        if mode is GenerationMode.POSITIVE and isinstance(case.body, dict):
            case.body.pop("model", None)  # any name but the served one is 404, which would hide all else
            case.body.pop("admit_wait_s", None)  # nor does anybody wait for longer than a test may take
        case.call_and_validate(excluded_checks=[accepts_right_data] if path in MORE_RULES else [])

    holds()


@pytest.mark.anyio
async def test_every_route_is_described_with_its_errors() -> None:
    async with serving(settings=ServeSettings(api_keys=("key",)), headers=[("authorization", "Bearer key")]) as served:
        spec = (await served.client.get("/openapi.json")).json()
    for path, methods in spec["paths"].items():
        for method, told in methods.items():
            assert told["summary"], (method, path)
            assert "422" not in told["responses"], (method, path)
            assert "200" in told["responses"], (method, path)
            assert ("401" in told["responses"]) == (path != "/health"), (method, path)
            if "requestBody" in told:
                assert {"400", "413"} <= set(told["responses"]), (method, path)


@pytest.mark.anyio
async def test_without_keys_the_description_names_none() -> None:
    async with serving() as served:
        spec = (await served.client.get("/openapi.json")).json()
    assert "security" not in spec
    assert all("401" not in told["responses"] for methods in spec["paths"].values() for told in methods.values())
