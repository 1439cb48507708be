"""Metrics count, and their page is complete."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from polystem.engine.scripted import Answer, ScriptedSettings
from tests.serve.served import Served, serving

pytestmark = pytest.mark.anyio

SAMPLE = re.compile(r"^(\w+)(\{.*\})? ([0-9.e+-]+)$")


async def samples(served: Served) -> dict[str, float]:
    text = (await served.client.get("/metrics")).text
    rows = [SAMPLE.match(line) for line in text.splitlines() if not line.startswith("#")]
    return {row[1] + (row[2] or ""): float(row[3]) for row in rows if row}


async def test_a_finished_turn_is_counted_with_its_tokens() -> None:
    async with serving(Answer("Hello")) as served:
        usage = (await served.chat()).json()["usage"]
        found = await samples(served)
    assert found['polystem_turns_total{outcome="finished"}'] == 1
    assert found['polystem_turn_tokens_total{kind="prompt"}'] == usage["prompt_tokens"]
    assert found['polystem_turn_tokens_total{kind="output"}'] == usage["completion_tokens"]
    assert found["polystem_first_token_seconds_count"] == 1
    assert found["polystem_turn_seconds_count"] == 1
    assert found['polystem_http_requests_total{route="/v1/chat/completions",status="200"}'] == 1


async def test_cells_add_up() -> None:
    async with serving(Answer("Hello")) as served:
        await served.chat(session_id="a")
        await served.client.post("/polykv/pools", json={"prompt": "abc"})
        found = await samples(served)
    cells = {kind: found[f'polystem_cells{{kind="{kind}"}}'] for kind in ("total", "free", "pool", "private")}
    assert cells["total"] == cells["free"] + cells["pool"] + cells["private"]
    assert cells["pool"] == 3
    assert found['polystem_sessions{state="idle"}'] == 1
    assert found["polystem_pools"] == 1
    assert found["polystem_engine_ready"] == 1


async def test_windows_are_counted_with_their_cells_and_who_was_refused() -> None:
    async with serving(Answer("Hello"), engine=ScriptedSettings(cells=4096, context_tokens=4096)) as served:
        await served.chat(session_id="lead", num_ctx=2048, max_tokens=2)
        refused = await served.chat(session_id="other", num_ctx=4096)
        found = await samples(served)
    assert refused.status_code == 429
    assert (found["polystem_windows"], found['polystem_window_cells{kind="booked"}']) == (1, 2048)
    assert 0 < found['polystem_window_cells{kind="used"}'] < 2048
    assert found["polystem_cell_refusals_total"] == 1


async def test_metrics_answer_before_the_engine_is_ready() -> None:
    async with serving(started=False) as served:
        found = await samples(served)
    assert found["polystem_engine_ready"] == 0


async def test_the_page_names_every_metric_and_no_other(repository: Path) -> None:
    async with serving() as served:
        text = (await served.client.get("/metrics")).text
    served_names = set(re.findall(r"^# TYPE (\w+) ", text, re.MULTILINE))
    served_names -= {name for name in served_names if name.endswith("_created")}
    page = (repository / "docs" / "metrics.md").read_text()
    assert set(re.findall(r"^\| `(\w+)` \|", page, re.MULTILINE)) == served_names


async def test_the_page_names_the_kind_and_labels_of_every_metric(repository: Path) -> None:
    async with serving(Answer("Hello")) as served:
        await served.chat(session_id="a")
        text = (await served.client.get("/metrics")).text
    page = (repository / "docs" / "metrics.md").read_text()
    for name, kind in re.findall(r"^# TYPE (\w+) (\w+)", text, re.MULTILINE):
        if name.endswith("_created"):
            continue
        label_names = set(re.findall(rf"^{name}(?:_count)?\{{(\w+)=", text, re.MULTILINE))
        row = re.search(rf"^\| `{name}` \| (\w+) \| (.*?) \|", page, re.MULTILINE)
        assert row is not None, name
        assert row[1] == kind
        assert set(re.findall(r"`(\w+)`", row[2])) >= label_names, name
