"""Swarms: 75 agents of two owners on courier-nano, whose server is killed half way and started again.

    python -m bench.swarms [--quick | --full] [--check]

The agents are clients of the control plane as programs in use are: one owner with a window for each swarm, two layers
of prefix, workers that stream with keepalive, wait where they are told to, ask for their owner to grow where it is
full, and ask for the server's health while it is away. The server keeps its store, so that it comes back with what it
had; the clients still make their owners anew, for another boot is another server to them. A fault is a 5xx or a
connection that fails while the server is there. A quick run has 24 agents.
"""

from __future__ import annotations

import asyncio
import socket
import sys
import tempfile
from dataclasses import asdict
from pathlib import Path

from bench.models import NANO, model_path
from bench.record import Arguments, Figure, Goal, Model, hand_in, read_arguments, tell
from tests.control_plane.two_swarms import Outcome, Work, run_two_swarms

FULL = Work(agents=75, turns=6, answer_tokens=24)
QUICK = Work(agents=24, turns=4, answer_tokens=16)


def free_port() -> int:
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def figures_of(work: Work, outcome: Outcome) -> list[Figure]:
    log = outcome.log
    return [
        Figure("agents that finished", outcome.finished, "agents", goal=Goal("==", work.agents)),
        Figure("turns done", outcome.turns, "turns", goal=Goal("==", work.agents * work.turns)),
        Figure("turns that shared the whole prefix", outcome.attached_whole, "turns", goal=Goal("==", outcome.turns)),
        Figure("faults seen beside the restart", len(outcome.faults_beside_the_restart()), "calls", goal=Goal("==", 0)),
        Figure("faults seen during the restart", len(log.faults()), "calls"),
        Figure("calls told to come again (429)", log.count(429), "calls"),
        Figure("server away", outcome.back_at_s - outcome.ended_at_s, "s"),
        Figure("wall time", outcome.wall_s, "s"),
        Figure("cells left when all were closed", outcome.cells_left, "cells", goal=Goal("==", 0)),
    ]


def main(arguments: Arguments) -> int:
    work = QUICK if arguments.quick else FULL
    with tempfile.TemporaryDirectory() as folder:
        outcome = asyncio.run(run_two_swarms(work, folder=Path(folder), port=free_port()))
    for note in outcome.faults_beside_the_restart():
        tell(f"fault: {note}")
    models = [Model.of(NANO, model_path(NANO))]
    return hand_in("swarms", arguments, figures_of(work, outcome), settings=asdict(work), models=models)


if __name__ == "__main__":
    sys.exit(main(read_arguments(__doc__ or "")))
