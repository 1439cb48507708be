"""The figures of an arm, each once: its name, unit, meaning, which way is better, and how it is read.

Knows no layout and no text of a value. The table of a run, the spread over repeats and a comparison take them from
here.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, TypeAlias

from polystem.harness.metrics import ArmSummary

__all__ = [
    "AGGREGATE_RATE",
    "COUNTS",
    "CROSS_TALK",
    "HELD",
    "LOST",
    "MEASURES",
    "REDUCTION",
    "RETRIED",
    "STRICT_RATE",
    "WALL",
    "WRONG_CALLS",
    "Better",
    "Count",
    "Measure",
    "Unit",
]

Better: TypeAlias = Literal["less", "more"]
Unit: TypeAlias = Literal["s", "tokens/s", "tokens", "cells", "agents", "share", "x"]


@dataclass(frozen=True, slots=True)
class Measure:
    """A figure of one arm in one run; None where the run does not have it.

    `better` says which way is an improvement; None where a ratio of two such figures says nothing by itself.
    """

    name: str
    unit: Unit
    better: Better | None
    meaning: str
    of: Callable[[ArmSummary], float | None]


@dataclass(frozen=True, slots=True)
class Count:
    """Something of an arm that is counted, and may be added up over runs."""

    name: str
    meaning: str
    of: Callable[[ArmSummary], int]


WALL = Measure("wall", "s", "less", "From the first submission to the last delivery.", lambda s: s.wall_s)
AGGREGATE_RATE = Measure(
    "aggregate rate",
    "tokens/s",
    "more",
    "Output tokens of all agents over the time from the first turn to the last.",
    lambda s: s.aggregate_tps,
)
STRICT_RATE = Measure(
    "strict rate",
    "tokens/s",
    "more",
    "Output tokens over turn time without tools, with queueing, retries and prefill.",
    lambda s: s.strict_tps,
)
HELD = Measure(
    "held",
    "s",
    None,
    "Time for which turns of workers that were let in were held by the gate, of all workers together.",
    lambda s: s.held_s,
)
REDUCTION = Measure(
    "reduction over time",
    "x",
    None,
    "Naive over used cells, both added up over the samples.",
    lambda s: None if s.cells is None else s.cells.reduction_mean,
)
MEASURES: tuple[Measure, ...] = (
    WALL,
    Measure(
        "p50 of delivery from submission",
        "s",
        "less",
        "From the submission of a package to its delivery: the median package.",
        lambda s: None if s.delivery_from_submission_s is None else s.delivery_from_submission_s.p50,
    ),
    Measure(
        "p50 of delivery from admission",
        "s",
        "less",
        "From the admission of a package's first turn to its delivery: the median package.",
        lambda s: None if s.delivery_from_admission_s is None else s.delivery_from_admission_s.p50,
    ),
    AGGREGATE_RATE,
    Measure(
        "median stream rate",
        "tokens/s",
        "more",
        "Rate of one agent in windows of 2 s of its decode time: the median.",
        lambda s: None if s.window_tps is None else s.window_tps.p50,
    ),
    STRICT_RATE,
    Measure("under the floor", "share", None, "Share of stream decode time below the floor.", lambda s: s.under_share),
    Measure(
        "under half of it",
        "share",
        None,
        "Share of stream decode time below half of the floor.",
        lambda s: s.deep_share,
    ),
    HELD,
    Measure("workers", "agents", None, "Agents between admission and end, time average.", lambda s: s.workers_mean),
    Measure(
        "prefilled", "tokens", "less", "Prompt tokens that had to be computed.", lambda s: float(s.prefilled_tokens)
    ),
    Measure(
        "cells at peak",
        "cells",
        "less",
        "KV cells in use at the fullest sample.",
        lambda s: None if s.cells is None else float(s.cells.used_peak),
    ),
    REDUCTION,
)

LOST = Count(
    "lost",
    "Packages without an end, or ended by what the model did not do: engine_error, timeout, refused. Must be 0.",
    lambda s: s.lost,
)
WRONG_CALLS = Count("wrong calls", "Calls that were answered with an error.", lambda s: s.errors)
CROSS_TALK = Count(
    "cross-talk",
    "Calls with an argument that belongs to another package. Must be 0: caches were mixed up.",
    lambda s: s.crossed,
)
RETRIED = Count(
    "retried",
    "Attempts at a turn that failed and were made again: server full, restarting or gone.",
    lambda s: s.retried,
)
COUNTS: tuple[Count, ...] = (LOST, WRONG_CALLS, CROSS_TALK, RETRIED)
