"""Runs each conformance test once for every engine of `cases.CASES`."""

from __future__ import annotations

import pytest

from tests.conformance.cases import CASES, EngineCase


@pytest.fixture(params=[pytest.param(case, id=case.name, marks=case.marks) for case in CASES])
def case(request: pytest.FixtureRequest) -> EngineCase:
    """The engine under test."""
    chosen: EngineCase = request.param
    return chosen
