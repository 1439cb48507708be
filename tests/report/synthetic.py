"""Records of runs that never were, drawn from a seed: as many packages as wanted, in no time, always the same.

A fleet of `workers` agents takes packages in order; a stream is the slower the longer its context and the more run
beside it. Times obey the record's own rules; nothing else about them is true.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from random import Random

from polystem.harness.record import Record
from polystem.harness.rows import (
    BUCKET_S,
    ArmRow,
    Manifest,
    PackageRow,
    RetryRow,
    Row,
    SampleRow,
    ToolRow,
    TurnRow,
)

PREFIX_TOKENS = 1216
FIRST_TOKENS = 34
RESULT_TOKENS = 12
TOTAL_CELLS = 200_000
TOOL_NAMES = ("collect", "drive", "scan", "deliver")


@dataclass(frozen=True, slots=True)
class Shape:
    """How an arm of the synthetic run behaves."""

    arm: str
    workers: int
    shared: bool = True
    base_tps: float = 60.0
    held: bool = False


ONE_ARM = (Shape("pooled", 4, held=True),)
TWO_ARMS = (Shape("pooled", 4, held=True), Shape("naive", 3, shared=False, base_tps=30.0))
SIX_ARMS = (
    Shape("pooled", 12, held=True),
    Shape("pooled-nogate", 32),
    Shape("pooled-static:8", 8),
    Shape("naive", 6, shared=False, base_tps=45.0, held=True),
    Shape("naive-static:8", 8, shared=False, base_tps=40.0),
    Shape("legacy-gate", 16),
)


def synthetic_record(
    packages: int,
    steps: int,
    shapes: Sequence[Shape] = ONE_ARM,
    *,
    seed: int = 7,
    floor_tps: float | None = 20.0,
    drop_every: int = 0,
) -> Record:
    """A run of all arms one after the other. Of `drop_every` packages one is dropped, by one cause after the other."""
    rows: list[Row] = []
    begun_s = 0.5
    for shape in shapes:
        arm = list(_arm(Random(f"{seed}-{shape.arm}"), shape, packages, steps, begun_s, floor_tps, drop_every))
        rows += arm
        begun_s = arm[-1].at_s + 1.0 if isinstance(arm[-1], ArmRow) else begun_s
    manifest = _manifest(packages, steps, shapes, seed, floor_tps)
    return Record(manifest, tuple(rows))


def _manifest(packages: int, steps: int, shapes: Sequence[Shape], seed: int, floor_tps: float | None) -> Manifest:
    return Manifest(
        started_at="2026-01-02T03:04:05+00:00",
        seed=seed,
        packages=packages,
        steps=steps,
        mode="replay",
        arms=tuple(shape.arm for shape in shapes),
        concurrency=max(shape.workers for shape in shapes),
        prefix_tokens=PREFIX_TOKENS,
        prefix_counted_by="tokens",
        model={"name": "courier-nano-f16", "sha256": "ab" * 32, "quant": "F16"},
        engine={"build": "b1", "threads": 2},
        machine={"cpu": "a processor", "cores": 2},
        versions={"polystem": "0", "python": "3.11"},
        arguments={"steps": steps, "packages": packages},
        server="own",
        floor_tps=floor_tps,
    )


CAUSES = ("wrong_tool", "loop", "length_cap", "wrong_argument")


def _arm(
    random: Random, shape: Shape, packages: int, steps: int, begun_s: float, floor_tps: float | None, drop_every: int
) -> Iterator[Row]:
    yield ArmRow(
        shape.arm, "start", begun_s, PREFIX_TOKENS, 0 if shape.shared else None, 0.25 if shape.shared else None
    )
    free_s = [begun_s] * shape.workers
    events: list[Row] = []
    spans: list[_Span] = []
    last_s = begun_s
    for package in range(packages):
        starts_s = heapq.heappop(free_s)
        dropped = drop_every > 0 and package % drop_every == drop_every - 1
        cause = CAUSES[package // max(drop_every, 1) % len(CAUSES)] if dropped else None
        carried = list(_package(random, shape, package, steps, begun_s, starts_s, cause))
        end = carried[-1]
        assert isinstance(end, PackageRow)
        heapq.heappush(free_s, end.ended_s)
        last_s = max(last_s, end.ended_s)
        events += carried
        spans.append(_Span(starts_s, end.ended_s, tuple(row for row in carried if isinstance(row, TurnRow))))
    yield from events
    yield from _samples(shape, spans, begun_s, last_s, floor_tps)
    yield ArmRow(
        shape.arm, "end", last_s + 0.1, PREFIX_TOKENS, 0 if shape.shared else None, None, cpu_s=packages * 0.02
    )


def _package(
    random: Random, shape: Shape, package: int, steps: int, begun_s: float, starts_s: float, cause: str | None
) -> Iterator[Row]:
    now_s, prompt_tokens = starts_s, PREFIX_TOKENS + FIRST_TOKENS
    taken = steps if cause is None else max(1, steps // 2)
    admitted_s = 0.0
    for step in range(taken):
        turn = _turn(random, shape, package, step, begun_s if step == 0 else now_s, now_s, prompt_tokens)
        admitted_s = turn.admitted_s if step == 0 else admitted_s
        yield turn
        if random.random() < 0.01:
            yield RetryRow(shape.arm, package, step, turn.submitted_s, "saturated", "no room", 1.0, 1.0, refused=True)
        tool = _tool(random, shape, turn, steps, None if step < taken - 1 else cause)
        yield tool
        now_s, prompt_tokens = tool.ended_s, prompt_tokens + turn.output_tokens + RESULT_TOKENS
    yield PackageRow(
        arm=shape.arm,
        package=package,
        package_id=f"{10_000 + package}",
        submitted_s=begun_s,
        admitted_s=admitted_s,
        ended_s=now_s,
        outcome="delivered" if cause is None else "dropped",
        cause=cause,
        detail="" if cause is None else "error 5 of 5",
        steps=steps,
        steps_taken=taken if cause is None else taken - 1,
        turns=taken,
        errors=0 if cause is None else 5,
        failed_turn=None if cause is None else taken - 1,
        asked="" if cause is None else 'scan {"package_id": "10000", "hub": "Elm"}',
        came="" if cause is None else 'drive {"hub": "Oak"}',
    )


def _turn(
    random: Random, shape: Shape, package: int, step: int, submitted_s: float, now_s: float, prompt_tokens: int
) -> TurnRow:
    held_s = random.uniform(0.1, 0.8) if shape.held and step and random.random() < 0.1 else 0.0
    admitted_s = round(now_s + held_s, 6)
    cached = prompt_tokens - RESULT_TOKENS if step else PREFIX_TOKENS if shape.shared else 0
    first_s = round(admitted_s + 0.01 + (prompt_tokens - cached) * 0.0002, 6)
    tokens = random.randint(16, 40)
    beside = 1 + shape.workers / 12
    tps = shape.base_tps / beside / (1 + prompt_tokens / 12_000) * random.uniform(0.75, 1.2)
    last_s = round(first_s + (tokens - 1) / tps, 6)
    return TurnRow(
        arm=shape.arm,
        package=package,
        turn=step,
        step=step,
        submitted_s=submitted_s,
        admitted_s=admitted_s,
        first_token_s=first_s,
        last_token_s=last_s,
        prompt_tokens=prompt_tokens,
        cached_tokens=cached,
        shared_tokens=PREFIX_TOKENS if shape.shared else 0,
        output_tokens=tokens,
        decode_tps=(tokens - 1) / (last_s - first_s),
        finish_reason="tool_calls",
        attempts=1,
        timed_by="server",
        pool_unknown=False,
        arrivals=_arrivals(tokens, last_s - first_s),
        held_s=held_s,
    )


def _arrivals(tokens: int, decode_s: float) -> tuple[tuple[float, int], ...]:
    buckets = [0] * (int(decode_s / BUCKET_S) + 1)
    for token in range(tokens):
        buckets[int(decode_s * token / tokens / BUCKET_S)] += 1
    return tuple((index * BUCKET_S, count) for index, count in enumerate(buckets) if count)


def _tool(random: Random, shape: Shape, turn: TurnRow, steps: int, cause: str | None) -> ToolRow:
    name = TOOL_NAMES[0 if turn.step == 0 else 3 if turn.step == steps - 1 else 1 + turn.step % 2]
    ended_s = round(turn.last_token_s + random.uniform(0.05, 0.25), 6)
    return ToolRow(
        shape.arm, turn.package, turn.turn, turn.step, name, turn.last_token_s, ended_s, cause is None, cause
    )


@dataclass(frozen=True, slots=True)
class _Span:
    """An agent between its start and its end."""

    start_s: float
    end_s: float
    turns: tuple[TurnRow, ...]


def _samples(
    shape: Shape, spans: Sequence[_Span], begun_s: float, last_s: float, floor_tps: float | None
) -> Iterator[SampleRow]:
    """A sample each 250 ms; spans are in the order in which they start."""
    at_s, following = begun_s + 0.25, 0
    running: list[tuple[_Span, int]] = []
    while at_s <= last_s:
        while following < len(spans) and spans[following].start_s <= at_s:
            running.append((spans[following], 0))
            following += 1
        running = [(span, _current(span, turn, at_s)) for span, turn in running if span.end_s > at_s]
        yield _sample(shape, [span.turns[turn] for span, turn in running], len(spans) - following, at_s, floor_tps)
        at_s = round(at_s + 0.25, 6)


def _current(span: _Span, turn: int, at_s: float) -> int:
    while turn + 1 < len(span.turns) and span.turns[turn + 1].submitted_s <= at_s:
        turn += 1
    return turn


def _sample(shape: Shape, turns: Sequence[TurnRow], waiting: int, at_s: float, floor_tps: float | None) -> SampleRow:
    decoding = sum(turn.first_token_s <= at_s < turn.last_token_s for turn in turns)
    tools = sum(turn.last_token_s <= at_s for turn in turns)
    naive = sum(turn.prompt_tokens for turn in turns)
    private = sum(turn.prompt_tokens - turn.shared_tokens for turn in turns)
    pool = PREFIX_TOKENS if shape.shared else 0
    return SampleRow(
        arm=shape.arm,
        at_s=at_s,
        live=len(turns) + waiting,
        queued=len(turns) + waiting - decoding - tools,
        decoding=decoding,
        tools=tools,
        cells_total=TOTAL_CELLS,
        cells_used=pool + private,
        cells_pool=pool,
        cells_private=private,
        naive_cells=naive,
        tokens_decoded=None,
        waiting=waiting,
        held=sum(turn.admitted_s - turn.held_s <= at_s < turn.admitted_s for turn in turns),
        floor_tps=floor_tps,
    )
