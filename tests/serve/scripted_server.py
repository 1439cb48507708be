"""A server over a scripted engine, in a process of its own: `python scripted_server.py STEP_S DRAIN_GRACE_S`."""

from __future__ import annotations

import sys

from polystem.clock import SystemClock
from polystem.engine.scripted import Answer, ScriptedEngine
from polystem.fleet import Fleet
from polystem.serve import ServeSettings
from polystem.serve.server import run_server

CUT_EXIT_CODE = 130


def main(step_s: float, drain_grace_s: float) -> int:
    def step_cost(decoding: int, cells_read: int, prefilled_tokens: int) -> float:
        return step_s

    clock = SystemClock()
    engine = ScriptedEngine(clock=clock, answers=[Answer("a" * 50)] * 3, step_cost=step_cost)
    fleet = Fleet(engine, clock=clock)
    settings = ServeSettings(port=0, drain_grace_s=drain_grace_s)
    end = run_server(fleet, settings, on_listening=tell_nothing, on_ready=lambda url: print(url, flush=True))
    return 0 if end == "drained" else CUT_EXIT_CODE


def tell_nothing(url: str) -> None:
    """Tests wait until the server is ready."""


if __name__ == "__main__":
    sys.exit(main(float(sys.argv[1]), float(sys.argv[2])))
