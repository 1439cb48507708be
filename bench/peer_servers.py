"""The servers that do one piece of courier work one after the other: ours in several ways, and others.

Knows no figure. Invariant: all are given the same model file, threads and cells in total, and as many slots as agents
where they have slots.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from typing import Literal

import psutil

from bench.models import NANO, model_path
from bench.servers import llama_cpp_server, llama_server, polystem_server
from polystem.engine.remote import RemoteClient
from polystem.harness.arm_servers import ServedArm, gate_in_force
from polystem.harness.arms import ArmPlan
from polystem.harness.settings import CourierSettings

__all__ = ["CONTENDERS", "OURS", "Contender", "Kind", "Measured", "server_threads"]

Kind = Literal["polystem", "llama-server", "llama-cpp-python"]


@dataclass(frozen=True, slots=True)
class Contender:
    """One server as it is set. `replays` is whether it takes token ids and decodes an exact number of tokens."""

    name: str
    kind: Kind
    arm: Literal["pooled", "plain"] = "plain"
    floored: bool = False
    replays: bool = True
    speaks: bool = True
    given: str = ""

    @property
    def modes(self) -> tuple[Literal["replay", "model"], ...]:
        """The modes that it is measured in."""
        return (*(("replay",) if self.replays else ()), *(("model",) if self.speaks else ()))


OURS = "ours, explicit pool"
CONTENDERS = (
    Contender(
        OURS, "polystem", arm="pooled",
        given="the prefix stored before the first agent comes; the time and the tokens of that count",
    ),
    Contender(
        "ours, explicit pool, floor", "polystem", arm="pooled", floored=True, speaks=False,
        given="the same, and the floor gate lets in as many agents as keep the floor",
    ),
    Contender(
        "ours, auto pool", "polystem",
        given="plain OpenAI requests without session or pool: `auto_pool` finds the prefix by itself, and without a "
        "session nothing says that a request goes on from an answer",
    ),
    Contender(
        "ours, auto pool, floor", "polystem", floored=True, speaks=False,
        given="the same, and the floor gate, to which each request is a worker of its own",
    ),
    Contender(
        "llama-server", "llama-server",
        given="from the xllamacpp wheel; a slot for each agent, the cells divided evenly among them; else its defaults "
        "(prompt cache on, 8,192 MiB of host memory for it, slots chosen by prompt similarity 0.1). It returns no "
        "token ids, so in mode replay planned tokens stand in for each answer and are read again, up to 2,000 of them "
        "in a full run; mode model has no such difference",
    ),
    Contender(
        "llama-server, unified KV", "llama-server",
        given="the same with `--kv-unified`: one cache of all cells for all slots",
    ),
    Contender(
        "llama-cpp-python's server", "llama-cpp-python", replays=False,
        given="`llama_cpp.server`, which runs one request at a time, in one sequence of all cells; it keeps what the "
        "prompt before had in common. Set for its good: `interrupt_requests` off, else each new request cuts off the "
        "one that runs; `logits_all` off, else logits of all prompt tokens are computed. It takes no token ids, so it "
        "cannot replay; its own formats read no tool calls from this model, an adapter in the bench does",
    ),
)  # fmt: skip


def server_threads() -> int:
    """Threads that every server is given: the cores that this process may use."""
    return len(psutil.Process().cpu_affinity())  # pyright: ignore[reportArgumentType]


def started(contender: Contender, work: CourierSettings, floor_tps: float | None) -> AbstractAsyncContextManager[str]:
    """A contender, freshly started for a piece of work. Gives its URL."""
    path, cells, threads = model_path(NANO), work.cells(), server_threads()
    match contender.kind:
        case "polystem":
            settings: dict[str, str | float | bool] = {"threads": threads, "auto_pool": contender.arm == "plain"}
            if floor_tps is not None:
                settings["floor_tps"] = floor_tps
            return polystem_server(path, cells=cells, settings=settings)
        case "llama-server":
            unified = contender.name != "llama-server"
            return llama_server(path, slots=work.agents, cells=cells, threads=threads, unified=unified)
        case "llama-cpp-python":
            return llama_cpp_server(path, cells=cells, threads=threads)


class Measured:
    """The contender's server for one run of the courier; `memory_bytes` is known when that is over.

    It is the resident memory of the server's processes together, read while the server still runs, with all that the
    agents left in it. Pages that two of the processes share count twice.
    """

    kind: Literal["own", "given"] = "own"

    def __init__(self, contender: Contender, work: CourierSettings) -> None:
        self._contender = contender
        self._work = work
        self.memory_bytes = 0

    @asynccontextmanager
    async def serving(self, arm: ArmPlan, floor_tps: float | None) -> AsyncGenerator[ServedArm, None]:
        floor = floor_tps if self._contender.floored else None
        gate = "as found" if arm.gate == "as found" else gate_in_force(arm, floor)
        async with started(self._contender, self._work, floor) as url, RemoteClient(url) as client:
            yield ServedArm(client, gate, floor, None)
            self.memory_bytes = _children_bytes()


def _children_bytes() -> int:
    """Resident memory of all processes that this one has started: the server's, for nothing else runs."""
    return sum(child.memory_info().rss for child in psutil.Process().children(recursive=True))
