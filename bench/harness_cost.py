"""Harness cost: processor time that the courier itself takes for a turn, against a server that answers at once.

    python -m bench.harness_cost [--quick | --full] [--check]

The server is a process of its own, and answers 28 tokens a turn, one event each, without a pause: whatever time is left
is the harness's (LangGraph, HTTP, parsing, record, sampler). Replays after a prefix of 1,216 tokens, in the arm naive,
whose sessions are named and closed. Tools take no time, so that every agent always has something to do: a fleet on a
real engine asks for less. By the number of agents at a time, and by the number of packages.
"""

from __future__ import annotations

import asyncio
import socket
import sys
import tempfile
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

from bench.record import Arguments, Figure, Goal, hand_in, read_arguments, tell
from polystem.engine.remote import RemoteClient
from polystem.harness.intervals import abba
from polystem.harness.metrics import summarise
from polystem.harness.record import ROWS_NAME, read_record
from polystem.harness.run import run_courier
from polystem.harness.settings import CourierSettings

WORK = CourierSettings(
    mode="replay", arms=("naive",), packages=256, steps=12, turn_tokens=(28, 28), tool_delay_s=(0, 0),
    prefix_tokens=1216,
)  # fmt: skip
AGENTS = (1, 16, 64, 256)
MANY_PACKAGES = 4000
MANY_STEPS = 4
GOAL_MS = 5.0
GOAL_GROWTH = 1.5
ROUNDS = {True: 1, False: 5}


@asynccontextmanager
async def instant_server() -> AsyncGenerator[str, None]:
    """The URL of the server, in a process of its own."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = int(probe.getsockname()[1])
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "bench.instant_server", str(port), stdout=asyncio.subprocess.PIPE
    )
    assert process.stdout is not None
    await process.stdout.readline()
    try:
        yield f"http://127.0.0.1:{port}"
    finally:
        process.kill()
        await process.wait()


async def cost(url: str, settings: CourierSettings) -> tuple[float, float]:
    """Milliseconds of processor time a turn, and bytes of record a turn."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        async with RemoteClient(url) as client:
            await run_courier(settings, client=client, folder=folder)
        summary = summarise(read_record(folder), "naive")
        assert summary.whole
        assert summary.harness_cpu_ms is not None
        return summary.harness_cpu_ms, (folder / ROWS_NAME).stat().st_size / summary.turns


async def measure(arguments: Arguments) -> list[Figure]:
    """By agents, in an order that turns round, then with many packages."""
    spent: dict[int, list[float]] = {agents: [] for agents in AGENTS}
    sizes: list[float] = []
    many: list[float] = []
    async with instant_server() as url:
        for order in abba(AGENTS, ROUNDS[arguments.quick]):
            for agents in order:
                packages = 16 if agents == 1 else WORK.packages
                milliseconds, size = await cost(url, replace(WORK, packages=packages, concurrency=agents))
                spent[agents].append(milliseconds)
                sizes.append(size)
                tell(f"{agents} agents: {milliseconds:.2f} ms a turn")
        if not arguments.quick:
            milliseconds, _ = await cost(url, replace(WORK, packages=MANY_PACKAGES, steps=MANY_STEPS, concurrency=256))
            many.append(milliseconds)
            tell(f"{MANY_PACKAGES} packages: {milliseconds:.2f} ms a turn")
    return figures_of(spent, many, sizes)


def figures_of(spent: dict[int, list[float]], many: list[float], sizes: list[float]) -> list[Figure]:
    """Processor time a turn for each number of agents, and how it grows."""
    name = "processor time of the harness for a turn"
    goals = {256: Goal("<=", GOAL_MS)}
    figures = [Figure.of(f"{name}, {agents} agents", each, "ms", goals.get(agents)) for agents, each in spent.items()]
    growth = [most / least for most, least in zip(spent[256], spent[16], strict=True)]
    figures.append(Figure.of(f"{name}, 256 agents over 16", growth, "ratio", Goal("<=", GOAL_GROWTH)))
    if many:
        figures.append(Figure.of(f"{name}, 256 agents, {MANY_PACKAGES} packages", many, "ms", Goal("<=", GOAL_MS)))
    figures.append(Figure.of("record for a turn", sizes, "bytes"))
    return figures


async def main() -> int:
    arguments = read_arguments(__doc__ or "")
    figures = await measure(arguments)
    return hand_in("harness_cost", arguments, figures, settings={"work": WORK.told()}, models=[])


if __name__ == "__main__":
    sys.exit(asyncio.run(main()))
