"""`polystem capacity`: a running server's gate as a table that teaches, as JSON, and again each second."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, get_args

import pytest
from aiohttp import web
from anyio import to_thread
from rich.console import Console

from polystem.capacity.asks import Reason
from polystem.capacity.policy import FloorPolicy, GateSettings
from polystem.cli import capacity
from polystem.cli.capacity import ENGINE_IS, MEANING_OF, capacity_table, headline
from polystem.cli.main import run
from polystem.engine.protocol import EngineState
from polystem.engine.scripted import Answer
from polystem.fleet import FloorSettings
from polystem.serve.capacity_shapes import CapacityAnswer
from tests.engine.remote.raw_server import Raw, raw_server
from tests.serve.served import serving

pytestmark = pytest.mark.anyio


@pytest.fixture(autouse=True)
def wide(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "200")


async def told_by(
    floor: FloorSettings, *, sessions: Sequence[str] = (), admission: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """What a real server tells of itself after some turns on a pool that may have a policy of its own."""
    async with serving(*[Answer("Hi")] * len(sessions), floor=floor) as served:
        await served.client.post("/polykv/pools", json={"prompt": "abc"})
        if admission is not None:
            answered = await served.client.post("/polykv/pools/0/admission", json=admission)
            assert answered.status_code == 200, answered.text
        for session_id in sessions:
            await served.chat(session_id=session_id, pool_id=0)
        await served.client.post("/elastic", json={})
        answer: dict[str, Any] = (await served.client.get("/fleet/capacity")).json()
    CapacityAnswer.model_validate(answer)
    return answer


@pytest.fixture
async def limited() -> dict[str, Any]:
    gate = GateSettings(policy=FloorPolicy(floor_tps=5), max_workers=1)
    return await told_by(FloorSettings(gate=gate, admit_wait_s=0), sessions=("a", "b"))


def shown(told: dict[str, Any]) -> str:
    console = Console(width=200)
    with console.capture() as captured:
        console.print(capacity_table(told))
    return captured.get()


def serving_once(told: dict[str, Any], times: int) -> tuple[Any, list[web.Request]]:
    """A server that answers so often and then has gone."""
    asked: list[web.Request] = []

    def answer(request: web.Request, _body: bytes) -> Raw:
        asked.append(request)
        if len(asked) > times:
            return Raw((b'{"error": {"message": "gone"}, "reason": "draining"}',), status=503)
        return Raw((json.dumps(told).encode(),))

    return raw_server(answer), asked


async def test_the_table_says_what_each_number_means(limited: dict[str, Any]) -> None:
    text = shown(limited)
    assert "nobody more now: max workers (the limit on workers is reached)" in text
    assert "5.0 tokens/s   kept for every stream; who finds no room waits, then gets 429" in text
    assert "= 1 queued + 1 live + 0 held + 0 done + 0 cancelled" in text
    assert "1   max workers: 1" in text, "who was told 429, and why"
    assert "promised is 5% at most" in text
    assert "more for each stream that decodes" in text
    assert "pool 0" in text


async def test_without_a_floor_it_says_how_to_set_one() -> None:
    told = await told_by(FloorSettings())
    assert "no floor is set: give --floor-tps to serve, or POST /elastic" in shown(told)


def with_floor(**policy: Any) -> FloorSettings:
    return FloorSettings(gate=GateSettings(policy=FloorPolicy(floor_tps=5, **policy)))


async def test_an_advisory_floor_is_told_and_keeps_nobody_out() -> None:
    told = await told_by(with_floor(mode="advisory"), sessions=("a",))
    text = " ".join(shown(told).split())
    assert headline(told).startswith("newcomers are let in whatever the floor says; there is room for ")
    assert "floor 5.0 tokens/s advisory: told, and nobody waits for it" in text
    assert "workers like the present ones that there is room for" in text
    assert "held - the floor is advisory, so nobody has to stand still" in text
    assert "no floor" not in text.split("pool 0")[0]


OF_THE_POOL = {"target_tps_per_session": 6, "mode": "enforced"}


async def test_a_floor_that_a_pool_asks_for_is_kept_also_beside_an_advisory_one() -> None:
    advised = await told_by(with_floor(mode="advisory"), sessions=("a",), admission=OF_THE_POOL)
    unset = await told_by(FloorSettings(), sessions=("a",), admission=OF_THE_POOL)
    kept = "floor 6.0 tokens/s kept for every stream, as a pool or a request asks; the server "
    assert f"{kept}only advises 5" in " ".join(shown(advised).split())
    assert f"{kept}sets none" in " ".join(shown(unset).split())
    assert "whatever the floor says" not in headline(advised)


async def test_a_floor_that_only_warns_lets_newcomers_in_and_says_so() -> None:
    told = await told_by(with_floor(on_saturation="warn"))
    assert "who finds no room is let in and told" in shown(told)
    assert told["workers"]["live"] == told["model"]["samples"] == told["model"]["samples_before"] == 0
    assert headline(told).startswith("newcomers are let in whatever the floor says; there is room for ")


async def test_a_floor_out_of_reach_says_so(limited: dict[str, Any]) -> None:
    assert "out of reach here even for one" in shown(limited | {"floor": limited["floor"] | {"unreachable": True}})


def test_every_reason_of_the_gate_is_explained() -> None:
    for reason, meaning in MEANING_OF.items():
        told = {"engine_state": "ready", "admissible": {"now": 0, "binding": reason}}
        assert headline(told) == f"nobody more now: {reason} ({meaning})"


def test_while_the_engine_is_not_ready_nobody_is_promised_a_place() -> None:
    for state in set(get_args(EngineState)) - {"ready"}:
        told = {"engine_state": state, "admissible": {"now": 64, "binding": None}}
        assert headline(told) == f"nobody is served now: {ENGINE_IS[state]}"


async def test_before_the_first_step_a_floor_lets_in_one_and_says_so(limited: dict[str, Any]) -> None:
    cold = limited | {
        "admissible": limited["admissible"] | {"now": 7, "binding": None},
        "workers": limited["workers"] | {"live": 0},
        "model": limited["model"] | {"samples": 0, "samples_before": 0},
    }
    assert headline(cold).startswith("1 may come in now, others once its first steps were seen; ")
    for known in ("samples", "samples_before"):
        assert headline(cold | {"model": cold["model"] | {known: 900}}) == "7 more may come in now"
    unset = limited["floor"] | {"floor_tps": None, "server_floor_tps": None}
    assert headline(cold | {"floor": unset}) == "7 more may come in now"
    for change in ({"on_saturation": "warn"}, {"mode": "advisory", "floor_tps": None}):
        all_in = "newcomers are let in whatever the floor says; there is room for 7 more"
        assert headline(cold | {"floor": limited["floor"] | change}) == all_in


@pytest.mark.parametrize(
    ("before", "since", "age_s", "words"),
    [
        (0, 0, None, "0 steps   nothing learnt yet: a guess from the sizes of the model"),
        (12345, 0, None, "12,345 steps   all of them in earlier runs, 0 since the engine started"),
        (12345, 55, 3.2, "12,400 steps   12,345 in earlier runs, 55 since the engine started; the last 3 s ago"),
        (0, 5500, 3.2, "5,500 steps   the last 3 s ago"),
    ],
)
async def test_what_earlier_runs_taught_is_told_apart(
    limited: dict[str, Any], before: int, since: int, age_s: float | None, words: str
) -> None:
    model = limited["model"] | {"samples_before": before, "samples": since, "age_s": age_s}
    assert words in shown(limited | {"model": model})


async def test_nobody_is_held_where_no_floor_is_set() -> None:
    told = await told_by(FloorSettings(), sessions=("a",))
    text = shown(told)
    assert "held - no floor is set, so nobody has to stand still" in " ".join(text.split())
    assert "= 0 queued + 1 live + 0 done + 0 cancelled" in text
    still = shown(told | {"workers": told["workers"] | {"held": 1, "on_hold": 1}})
    assert "1   1 by the ladder, 0 in mid-answer" in still, "the floor was taken away a moment ago"


def test_the_reasons_are_those_of_the_gate() -> None:
    assert set(MEANING_OF) == set(get_args(Reason))


async def test_it_prints_the_table_of_a_server(limited: dict[str, Any], capsys: pytest.CaptureFixture[str]) -> None:
    server, asked = serving_once(limited, 1)
    async with server as url:
        code = await to_thread.run_sync(run, ["capacity", "--url", f"{url}/v1", "--api-key", "secret"])
    assert code == 0
    output = capsys.readouterr()
    assert "nobody more now: max workers" in output.out
    assert output.err == ""
    assert [request.path for request in asked] == ["/fleet/capacity"]
    assert asked[0].headers["authorization"] == "Bearer secret"


async def test_json_is_what_the_server_said(limited: dict[str, Any], capsys: pytest.CaptureFixture[str]) -> None:
    server, _ = serving_once(limited, 1)
    async with server as url:
        assert await to_thread.run_sync(run, ["capacity", "--url", url, "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == limited


@pytest.mark.parametrize("as_json", [True, False])
async def test_watching_goes_on_until_the_server_is_gone(
    limited: dict[str, Any],
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    as_json: bool,
) -> None:
    monkeypatch.setattr(capacity, "EVERY_S", 0.0)
    server, asked = serving_once(limited, 3)
    flags = ["--watch", *(["--json"] if as_json else [])]
    async with server as url:
        code = await to_thread.run_sync(run, ["capacity", "--url", url, *flags])
    output = capsys.readouterr()
    assert code == 5
    assert len(asked) == 4
    assert "error: gone" in output.err
    if as_json:
        assert [json.loads(line) for line in output.out.splitlines()] == [limited] * 3
    else:
        assert output.out.count("nobody more now") == 3


async def test_a_server_that_is_not_there_is_told(free_port: int, capsys: pytest.CaptureFixture[str]) -> None:
    url = f"http://127.0.0.1:{free_port}"
    assert await to_thread.run_sync(run, ["capacity", "--url", url]) == 5
    assert capsys.readouterr().err == (
        f"error: cannot connect to {url}: Connection refused\n"
        "hint: start a server with `polystem serve`, or name the one to ask with --url URL\n"
    )


@pytest.mark.parametrize("url", ["127.0.0.1:8231", "localhost:8231", "ftp://localhost:8231"])
def test_a_url_without_http_is_told_what_it_lacks(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["capacity", "--url", url]) == 2
    assert capsys.readouterr().err == (
        f"error: the server's URL is '{url}', it must begin with http:// or https://\n"
        f"hint: write http://{url.removeprefix('ftp://')}\n"
    )
