"""Fidelity: a worker on a pool sees what it would see alone, and nothing of any other.

    python -m bench.fidelity [--quick | --full] [--check]

Logits: courier-nano in process, the same tokens with the first b of them lent by a pool and without any pool, at many
boundaries b. They are computed in batches of other shapes, so they differ by rounding; the goal is the tolerance.
Secrets: couriers over HTTP, 16 at a time on one pool, each told a package id and a door code of its own. Every answer
is searched for the ids and codes of all others.
"""

from __future__ import annotations

import asyncio
import random
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import orjson

from bench.models import NANO, model_path
from bench.record import Figure, Goal, Model, hand_in, read_arguments, tell
from bench.servers import polystem_server, settings_of
from polystem.engine.llama import LlamaEngine, LlamaSettings
from polystem.engine.protocol import Placement
from polystem.engine.remote import Answer, RemoteClient
from polystem.harness.handbook import system_text
from polystem.harness.prefix import Prefix, model_prefix
from polystem.harness.server_facts import ControlPlane
from polystem.harness.world import TOOLS, Job, Package, draw_packages, order_text
from polystem.messages import JsonObject

PREFIX_TOKENS = 875
TOLERANCE = 0.1
POOL_BRANCH = 1
WORKER_BRANCH = 2
WORKERS = 16
STEPS = 22
TURN_ERRORS_LIMIT = 5
SEED = 200_003  # below a million, where training never draws
CELLS = 32768


async def logit_figures(boundaries: int) -> tuple[list[Figure], dict[str, Any]]:
    """Largest difference of any logit at each boundary, and how often the most likely token is the same."""
    engine = LlamaEngine(LlamaSettings(model_path=model_path(NANO), cells=4096, sequences=8, process="thread"))
    await engine.start()
    try:
        tokens = await engine.tokenize(system_text(4000, len))
        tokens = tuple(tokens[:PREFIX_TOKENS])
        await engine.hold(POOL_BRANCH, tokens)
        dice, differences, spans, agreements = random.Random(0), list[float](), list[float](), list[bool]()
        for _ in range(boundaries):
            boundary = dice.randrange(1, len(tokens))
            length = min(len(tokens), boundary + dice.randrange(1, 64))
            prompt = (*tokens[:boundary], *dice.choices(tokens, k=length - boundary + 1))
            lent = Placement(WORKER_BRANCH, source=POOL_BRANCH, shared_tokens=boundary, keep=False)
            pooled = np.asarray(await engine.logits(prompt, lent))
            alone = np.asarray(await engine.logits(prompt))
            differences.append(float(np.abs(pooled - alone).max()))
            spans.append(float(np.ptp(alone)))
            agreements.append(bool(pooled.argmax() == alone.argmax()))
    finally:
        await engine.aclose()
    worst = max(differences)
    tell(f"logits: differ by {worst:.2g} at most over {boundaries} boundaries; they span {min(spans):.3g} or more")
    settings = {name: value for name, value in engine.info.settings.items() if name != "model_path"}
    return [
        Figure("largest difference of a logit, pooled against alone", worst, "logit", boundaries,
               (min(differences), worst), Goal("<=", TOLERANCE)),
        Figure.of("span of the logits", spans, "logit"),
        Figure("boundaries with the same most likely token", sum(agreements) / boundaries, "share", boundaries),
    ], settings  # fmt: skip


@dataclass(slots=True)
class Tally:
    """What the couriers said."""

    turns: int = 0
    leaks: int = 0
    own: int = 0
    delivered: int = 0
    packages: int = 0
    shared_tokens: list[int] = field(default_factory=lambda: [])


def numbers_in(answer: Answer) -> Iterator[str]:
    """Every number that an answer holds, in its text and in its calls."""
    said = " ".join([answer.text, answer.reasoning, *(call.arguments_json for call in answer.tool_calls)])
    return iter(re.findall(r"\d+", said))


class Courier:
    """One package at a time, its answers searched for what only others were told."""

    def __init__(self, client: RemoteClient, prefix: Prefix, pool: int, packages: tuple[Package, ...]) -> None:
        self._client = client
        self._prefix = prefix
        self._pool = pool
        self._packages = packages
        self._secrets = set[str]()  # of every worker that was told one
        self.tally = Tally()

    async def carry(self, package: Package) -> None:
        """One agent's conversation, to the delivery or the error limit."""
        own = {package.package_id, package.door_code}
        self._secrets |= own
        job, errors = Job(package, self._packages), 0
        session = f"secrets-{package.index}"
        messages: list[dict[str, Any]] = [{"role": "system", "content": self._prefix.text}]
        messages.append({"role": "user", "content": order_text(package)})
        while not job.done and errors < TURN_ERRORS_LIMIT:
            answer = await self._client.chat(self._body(messages, session))
            self._count(answer, own)
            right, said = self._acted(job, answer)
            errors += not right
            messages += said
        self.tally.packages += 1
        self.tally.delivered += job.done
        await ControlPlane(self._client).close_session(session)

    def _body(self, messages: list[dict[str, Any]], session: str) -> dict[str, Any]:
        return {
            "messages": messages, "tools": list(TOOLS), "parallel_tool_calls": False, "temperature": 0,
            "max_tokens": 96, "session_id": session, "pool_id": self._pool,
        }  # fmt: skip

    def _count(self, answer: Answer, own: set[str]) -> None:
        numbers = set(numbers_in(answer))
        self.tally.turns += 1
        self.tally.leaks += len(numbers & (self._secrets - own))
        self.tally.own += bool(numbers & own)
        if answer.attach is not None:
            self.tally.shared_tokens.append(answer.attach.shared_tokens)

    @staticmethod
    def _acted(job: Job, answer: Answer) -> tuple[bool, list[dict[str, Any]]]:
        """Whether there was a right call, and the messages that go on with what it brought."""
        if not answer.tool_calls:
            nudge = {"role": "user", "content": "Error: no tool call."}
            return False, [{"role": "assistant", "content": answer.text}, nudge]
        call = answer.tool_calls[0]
        try:
            arguments: JsonObject = orjson.loads(call.arguments_json)
        except orjson.JSONDecodeError:
            arguments = {}
        result = job.apply(call.name, arguments)
        function = {"name": call.name, "arguments": orjson.dumps(arguments).decode()}
        said = {"role": "assistant", "content": answer.text}
        said |= {"tool_calls": [{"id": call.id, "type": "function", "function": function}]}
        return result.ok, [said, {"role": "tool", "tool_call_id": call.id, "content": result.text}]


async def secret_figures(turns: int) -> tuple[list[Figure], dict[str, Any]]:
    """Couriers, `WORKERS` at a time; none begins once `turns` turns were taken."""
    packages = draw_packages(SEED, 2 * -(-turns // STEPS), STEPS)  # more than are begun: one that is dropped is shorter
    async with polystem_server(model_path(NANO), cells=CELLS) as url, RemoteClient(url) as client:
        facts = await ControlPlane(client).facts(None)
        prefix = await model_prefix(client, facts, prefix_tokens=PREFIX_TOKENS, seed=0)
        pool, _ = await ControlPlane(client).create_pool(prefix.token_ids)
        courier, room = Courier(client, prefix, pool, packages), asyncio.Semaphore(WORKERS)

        async def carried(package: Package) -> None:
            async with room:
                if courier.tally.turns < turns:
                    await courier.carry(package)

        async with asyncio.TaskGroup() as crew:
            for package in packages:
                crew.create_task(carried(package))
        settings = await settings_of(client)
    tally = courier.tally
    tell(f"{tally.turns} turns, {tally.leaks} foreign secrets, {tally.delivered} of {tally.packages} delivered")
    where = f"{WORKERS} workers"
    return [
        Figure(
            f"secrets of another worker in an answer, {where}", tally.leaks, "secrets", tally.turns, goal=Goal("==", 0)
        ),
        Figure(f"turns searched, {where}", tally.turns, "turns", goal=Goal(">=", turns)),
        Figure(f"turns that named the worker's own secret, {where}", tally.own, "turns", tally.turns),
        Figure(f"packages delivered, {where}", tally.delivered / tally.packages, "share", tally.packages),
        Figure.of(f"tokens lent by the pool, {where}", tally.shared_tokens, "tokens", Goal("==", prefix.length_tokens)),
    ], settings


async def main() -> int:
    arguments = read_arguments(__doc__ or "")
    logits, in_process = await logit_figures(40 if arguments.quick else 400)
    secrets, served = await secret_figures(352 if arguments.quick else 2000)
    models = [Model.of(NANO, model_path(NANO))]
    settings = {"in process": in_process, "served": served}
    return hand_in("fidelity", arguments, logits + secrets, settings=settings, models=models)


if __name__ == "__main__":
    sys.exit(asyncio.run(main()))
