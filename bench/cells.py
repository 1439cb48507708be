"""Cells: what N workers on one prefix take, against the same without sharing, and how many fit a given buffer.

    python -m bench.cells [--quick | --full] [--check]

courier-nano, replayed turns over HTTP. Two runs: N = 8 workers of S = 20 private cells on P = 875; and as many workers
as 8,500 cells hold. A context has 256 sequences, one for each worker and pool, so for the second run S is 32: at S = 20
the buffer would hold 381 workers, more than there are sequences.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from bench.models import NANO, model_path
from bench.record import Figure, Goal, Model, hand_in, read_arguments, tell
from bench.replay import Replayer, alphabet_of, draw_tokens
from bench.servers import polystem_server, settings_of
from polystem.engine.remote import RemoteClient
from polystem.errors import Saturated
from polystem.harness.server_facts import ControlPlane

PREFIX_TOKENS = 875
WORKERS = 8
PRIVATE_CELLS = 20
BUFFER_CELLS = 8500
CROWD_PRIVATE_CELLS = 32
SEQUENCES = 256
TURNS = 2
SLACK = 1.02


@dataclass(frozen=True, slots=True)
class Crew:
    """Workers on one stored prefix."""

    client: RemoteClient
    replayer: Replayer
    alphabet: Sequence[int]
    prefix: tuple[int, ...]
    pool: int

    @classmethod
    async def on_new_pool(cls, client: RemoteClient, seed: str) -> Crew:
        replayer, alphabet = Replayer(client), await alphabet_of(client)
        prefix = draw_tokens(seed, PREFIX_TOKENS, alphabet)
        return cls(client, replayer, alphabet, prefix, await replayer.pool(prefix))

    async def run_worker(self, name: str, cells: int) -> None:
        """Turns until the session holds `cells` private cells: half of them read, half decoded.

        The last token of an answer is given out, not stored; it takes its cell when the next turn reads it.
        """
        piece = cells // (2 * TURNS)
        transcript = [*self.prefix]
        for turn in range(TURNS):
            transcript += draw_tokens(f"{name}/{turn}", piece, self.alphabet)
            left = len(self.prefix) + cells - len(transcript)
            answer = await self.replayer.turn(
                transcript, left + 1 if turn == TURNS - 1 else piece, session=name, pool=self.pool
            )
            transcript += answer.token_ids

    async def disband(self, names: Sequence[str]) -> None:
        await self.replayer.close(names)
        await ControlPlane(self.client).release_pool(self.pool)


async def few_workers(quick: bool) -> tuple[list[Figure], dict[str, Any]]:
    """Eight workers at once; the count is read when all are done and all sessions are kept."""
    counts: list[dict[str, Any]] = []
    async with polystem_server(model_path(NANO), cells=8192) as url, RemoteClient(url) as client:
        for repeat in range(1 if quick else 5):
            crew = await Crew.on_new_pool(client, f"prefix/{repeat}")
            names = [f"few-{repeat}-{worker}" for worker in range(WORKERS)]
            await asyncio.gather(*(crew.run_worker(name, PRIVATE_CELLS) for name in names))
            counts.append(await client.get_json("/kv"))
            await crew.disband(names)
        settings = await settings_of(client)
    privates = [kv["cells_private"] / WORKERS for kv in counts]
    where = f"N={WORKERS} P={PREFIX_TOKENS} S={max(privates):g}"
    bound = SLACK * (PREFIX_TOKENS + WORKERS * PRIVATE_CELLS)
    return [
        Figure.of(f"cells used, {where}", [kv["cells_used"] for kv in counts], "cells", Goal("<=", bound)),
        Figure.of(f"cells without sharing, {where}", [kv["naive_cells"] for kv in counts], "cells"),
        Figure.of(f"reduction, {where}", [kv["naive_cells"] / kv["cells_used"] for kv in counts], "x"),
    ], settings


async def crowd() -> list[Figure]:
    """Workers one after the other, each kept, until one more takes the place of another."""
    async with (
        polystem_server(model_path(NANO), cells=BUFFER_CELLS, sequences=SEQUENCES) as url,
        RemoteClient(url) as client,
    ):
        most, private = await _fill(client, await Crew.on_new_pool(client, "crowd"))
    expected = (BUFFER_CELLS - PREFIX_TOKENS) // private
    naive = BUFFER_CELLS // (PREFIX_TOKENS + private)
    tell(f"{most} workers of {private} private cells fit; (C - P) / S says {expected}, without sharing {naive}")
    where = f"C={BUFFER_CELLS} P={PREFIX_TOKENS} S={private}"
    return [
        Figure(f"workers that fit, {where}", most, "workers"),
        Figure(f"workers that fit against (C - P) / S, {where}", abs(most - expected), "workers", goal=Goal("<=", 1)),
        Figure(f"workers that would fit without sharing, {where}", naive, "workers"),
    ]


async def _fill(client: RemoteClient, crew: Crew) -> tuple[int, int]:
    """Most sessions that held all their cells at the same time, and the private cells of each."""
    most, private = 0, 0
    for worker in range(SEQUENCES):
        try:
            await crew.run_worker(f"crowd-{worker}", CROWD_PRIVATE_CELLS)
        except Saturated:
            break
        kv = await client.get_json("/kv")
        held = sum(1 for session in kv["sessions"] if session["cells"] > 0)
        if held <= most:
            break
        most, private = held, round(kv["cells_private"] / held)
    return most, private


async def main() -> int:
    arguments = read_arguments(__doc__ or "")
    figures, settings = await few_workers(arguments.quick)
    figures += await crowd()
    models = [Model.of(NANO, model_path(NANO))]
    return hand_in("cells", arguments, figures, settings=settings, models=models)


if __name__ == "__main__":
    sys.exit(asyncio.run(main()))
