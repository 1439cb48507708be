"""`polystem capacity`: what a running server's gate knows, as a table that says what each number means."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Iterator, Mapping
from typing import Annotated, Any, TypeAlias

import orjson
import typer
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.live import Live
from rich.table import Table

from polystem.cli.errors import server_named_by
from polystem.clock import SystemClock
from polystem.engine.remote import RemoteClient

PATH = "/fleet/capacity"
DEFAULT_URL = "http://127.0.0.1:8080"
EVERY_S = 1.0
INTERRUPTED_EXIT_CODE = 130
READY = "ready"
ENGINE_IS = {
    "starting": "the engine is starting",
    "restarting": "the engine ended and is starting again",
    "failed": "the engine ended and does not come back; see the server's log",
    "closed": "the server ends",
}
MEANING_OF = {
    "floor": "one more, and streams would be under the floor for more of their time than promised",
    "burst": "with one more, if all decoded at once, everybody would fall below half the floor",
    "no gain": "with one more, all together would decode fewer tokens a second",
    "kv headroom exhausted": "no cells for one more",
    "seats": "no sequence for one more",
    "max workers": "the limit on workers is reached",
    "settling": "the engine is new here; the first workers are watched",
    "warming": "those let in last have not shown their rate yet",
    "saturated, hold": "workers are under the floor now, and some are held back",
    "queue": "others came first",
    "queue full": "the queue is as long as it may be",
    "floor unreachable": "not even one worker alone reaches the floor; one is served",
    "draining": "the server ends",
}
HELP = f"""Show what the gate of a running server knows: who may come in, what binds, and the fitted step model.

  polystem capacity

  polystem capacity --url http://127.0.0.1:8000 --watch

  polystem capacity --json

The numbers are GET {PATH}; reading them changes nothing. With --watch they come again each second, until Ctrl-C.
"""

Told: TypeAlias = Mapping[str, Any]
Row: TypeAlias = tuple[str, str, str]

UrlFlag = Annotated[str, typer.Option(metavar="URL", help="The server.")]
KeyFlag = Annotated[
    str | None, typer.Option(metavar="KEY", envvar="POLYSTEM_CAPACITY_API_KEY", help="Its API key, if it wants one.")
]


def register(app: typer.Typer) -> None:
    """Adds the command."""
    app.command("capacity", help=HELP)(capacity)


def capacity(
    url: UrlFlag = DEFAULT_URL,
    api_key: KeyFlag = None,
    watch: Annotated[bool, typer.Option("--watch", help="Again each second, until Ctrl-C.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON, one object a line with --watch.")] = False,
) -> None:
    """Prints the gate's state, once or each second."""
    try:
        asyncio.run(_shown(url, api_key, watch=watch, as_json=as_json))
    except KeyboardInterrupt:
        raise typer.Exit(INTERRUPTED_EXIT_CODE) from None


async def _shown(url: str, api_key: str | None, *, watch: bool, as_json: bool) -> None:
    console = Console(highlight=False, soft_wrap=not sys.stdout.isatty())
    async with RemoteClient(url, api_key=api_key) as client:
        with server_named_by("--url"):
            told = await client.get_json(PATH)
        if not watch:
            _print(told, console, as_json=as_json)
            return
        if as_json or not console.is_terminal:
            await _print_each_second(client, told, console, as_json=as_json)
        else:
            await _live(client, told, console)


def _print(told: Told, console: Console, *, as_json: bool) -> None:
    if as_json:
        print(orjson.dumps(told, option=orjson.OPT_INDENT_2).decode())
    else:
        console.print(capacity_table(told))


async def _print_each_second(client: RemoteClient, told: Told, console: Console, *, as_json: bool) -> None:
    while True:
        if as_json:
            print(orjson.dumps(told).decode(), flush=True)
        else:
            console.print(capacity_table(told))
        await SystemClock().sleep(EVERY_S)
        told = await client.get_json(PATH)


async def _live(client: RemoteClient, told: Told, console: Console) -> None:
    with Live(capacity_table(told), console=console, auto_refresh=False) as live:
        while True:
            await SystemClock().sleep(EVERY_S)
            live.update(capacity_table(await client.get_json(PATH)), refresh=True)


def capacity_table(told: Told) -> Table:
    """The gate's state, a number and its meaning in each row."""
    table = Table(box=SIMPLE_HEAD, padding=(0, 2, 0, 0), title=headline(told), title_justify="left", title_style="bold")
    table.add_column("what")
    table.add_column("now", justify="right")
    table.add_column("meaning")
    for rows in (_room(told), _rates(told), _workers(told), _model(told), _memory(told), _pools(told)):
        for row in rows:
            table.add_row(*row)
        table.add_section()
    return table


def headline(told: Told) -> str:
    """One sentence: who may come in now, and why not more."""
    state, room, binding = told["engine_state"], told["admissible"]["now"], told["admissible"]["binding"]
    if state != READY:
        return f"nobody is served now: {ENGINE_IS.get(state, state)}"
    if binding is not None:
        return f"nobody more now: {binding} ({MEANING_OF.get(binding, 'see docs/api.md')})"
    if _lets_all_in(told["floor"]):
        beyond = "" if room is None else f"; there is room for {room} more"
        return f"newcomers are let in whatever the floor says{beyond}"
    if room is None:
        return "everybody may come in: no floor and no limit is set"
    if room > 1 and _is_unseen(told):
        return f"1 may come in now, others once its first steps were seen; the model expects room for {room}"
    return f"{room} more may come in now"


def _waits(floor: Told) -> bool:
    """Whether who finds no room at the server's floor has to wait."""
    enforced = floor["mode"] == "enforced" and floor["on_saturation"] == "reject"
    return floor["server_floor_tps"] is not None and enforced


def _lets_all_in(floor: Told) -> bool:
    """Whether there is a floor, and nobody waits for it: not for the server's, and for no other."""
    server_tps = floor["server_floor_tps"]
    return server_tps is not None and not _waits(floor) and floor["floor_tps"] in (None, server_tps)


def _is_unseen(told: Told) -> bool:
    """Whether newcomers wait for a floor of an engine of which no step is known: the first worker is watched alone."""
    model = told["model"]
    return _waits(told["floor"]) and not told["workers"]["live"] and not model["samples"] + model["samples_before"]


def _room(told: Told) -> Iterator[Row]:
    floor, room = told["floor"], told["admissible"]
    kept_tps, server_tps = floor["floor_tps"], floor["server_floor_tps"]
    yield "floor", _tps(server_tps if kept_tps is None else kept_tps), _floor_meaning(floor)
    could = "there is room for" if _lets_all_in(floor) else "could still be let in"
    yield "room now", _count(room["now"]), f"workers like the present ones that {could}"
    yield "expected wait", f"{room['expected_wait_s']:.1f} s", "of who asks now"
    yield "at once (k*)", _count(floor["k_star"]), "streams that may decode in one step at the floor"
    promised = f"streams under the floor, share of their time; promised is {floor['under_share']:.0%} at most"
    yield "under it, U(N)", _share(floor["share_now"]), promised
    yield "with one more", _share(floor["share_next"]), "the same, with one more worker"


def _floor_meaning(floor: Told) -> str:
    kept_tps, server_tps, advisory = floor["floor_tps"], floor["server_floor_tps"], floor["mode"] == "advisory"
    if kept_tps is None and server_tps is None:
        return "no floor is set: give --floor-tps to serve, or POST /elastic"
    if kept_tps is None:
        return "advisory: told, and nobody waits for it"
    if floor["unreachable"]:
        return "out of reach here even for one worker alone"
    if server_tps is None or advisory:
        own = "sets none" if server_tps is None else f"only advises {server_tps:g}"
        return f"kept for every stream, as a pool or a request asks; the server {own}"
    found_no_room = {"reject": "waits, then gets 429", "warn": "is let in and told"}
    return f"kept for every stream; who finds no room {found_no_room[floor['on_saturation']]}"


def _rates(told: Told) -> Iterator[Row]:
    floor = told["floor"]
    source = "by the model alone, for nothing decodes" if floor["projected_idle"] else "by the model"
    yield "measured", _tps(floor["measured_tps"]), "mean rate of a stream in the last seconds"
    yield "predicted", _tps(floor["predicted_tps"]), f"the same {source}"
    yield "with one more", _tps(floor["next_tps"]), "predicted with one more stream"
    idle = "share of time in which no worker decodes: all are in their tools"
    yield "idle", _share(told["demand"]["idle_share"]), idle


def _workers(told: Told) -> Iterator[Row]:
    workers = told["workers"]
    audit = ("queued", "live", *(("held",) if _may_hold(told) else ()), "done", "cancelled")
    sums = " + ".join(f"{workers[state]} {state}" for state in audit)
    yield "workers", _count(workers["submitted"]), f"= {sums}"
    yield "decoding", _count(workers["decoding"]), f"streams now; {workers['warming']} are warming up"
    yield "foreign", _count(workers["foreign"]), "streams that came past the gate; it yields to them"
    yield _held(told)
    yield "told to wait", _count(sum(workers["refused"].values())), _reasons(workers["refused"])


def _held(told: Told) -> Row:
    workers = told["workers"]
    if not _may_hold(told):
        why = "no floor is set" if told["floor"]["server_floor_tps"] is None else "the floor is advisory"
        return "held", _count(None), f"{why}, so nobody has to stand still"
    return "held", _count(workers["held"]), f"{workers['on_hold']} by the ladder, {workers['paused']} in mid-answer"


def _may_hold(told: Told) -> bool:
    """Turns are held for the sake of a floor that is kept; some may still be after it was taken away."""
    return told["floor"]["floor_tps"] is not None or told["workers"]["held"] > 0


def _reasons(refused: Mapping[str, int]) -> str:
    return ", ".join(f"{reason}: {count}" for reason, count in refused.items()) or "nobody was told 429"


def _model(told: Told) -> Iterator[Row]:
    model, spread = told["model"], told["model"]["deviations"]
    for name, unit, factor, meaning in (
        ("base_s", "ms", 1e3, "a step, before anything else"),
        ("per_stream_s", "ms", 1e3, "more for each stream that decodes"),
        ("per_cell_s", "us", 1e6, "more for each cell that is read"),
        ("per_prefill_token_s", "us", 1e6, "more for each prompt token in the step"),
        ("per_read_s", "ns", 1e9, "more for each cell that each of these rows reads for itself"),
    ):
        value = f"{_figure(model[name] * factor)} ± {_figure(spread[name] * factor)} {unit}"
        yield name.removesuffix("_s").replace("_", " "), value, meaning
    yield "learnt from", *_learnt(model)
    demand = told["demand"]
    yield "a worker", f"{demand['turn_tokens']:.0f} tokens", f"in a turn, then {demand['think_s']:.2g} s in its tools"


def _learnt(model: Told) -> tuple[str, str]:
    """How many steps taught the model, and when."""
    steps, before, age_s = model["samples"], model["samples_before"], model["age_s"]
    age = "none of them since the engine started" if age_s is None else f"the last {age_s:.0f} s ago"
    if not before:
        age = "nothing learnt yet: a guess from the sizes of the model" if age_s is None else age
    elif steps:
        age = f"{before:,} in earlier runs, {steps:,} since the engine started; {age}"
    else:
        age = "all of them in earlier runs, 0 since the engine started"
    return f"{before + steps:,} steps", age


def _memory(told: Told) -> Iterator[Row]:
    cells, seats = told["cells"], told["seats"]
    meaning = f"{cells['pool']} of them in pools; {cells['promised']} with what workers may still need"
    yield "cells", f"{cells['used']} of {cells['total']}", meaning
    yield "seats", f"{seats['used']} of {seats['total']}", "sequences, of pools and sessions"


def _pools(told: Told) -> Iterator[Row]:
    for pool in told["admissible"]["by_pool"]:
        why = "" if pool["reason"] is None else f"; {pool['reason']}"
        floor = "no floor" if pool["floor_tps"] is None else f"floor {pool['floor_tps']:g} tokens/s"
        yield f"pool {pool['pool_id']}", _count(pool["admissible"]), f"more on it; {floor}{why}"


def _figure(value: float) -> str:
    """Three figures, never with an exponent."""
    return f"{value:.0f}" if abs(value) >= 100 else f"{value:.3g}" if abs(value) >= 1e-3 else f"{value:.6f}"


def _count(value: int | None) -> str:
    return "-" if value is None else str(value)


def _tps(value: float | None) -> str:
    return "-" if value is None else f"{value:.1f} tokens/s"


def _share(value: float | None) -> str:
    return "-" if value is None else f"{value:.1%}"
