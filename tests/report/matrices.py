"""A matrix that never was, drawn from a seed: verdicts and interactions are found from its cells as in a real one."""

from __future__ import annotations

from collections import Counter
from random import Random

from polystem.harness.matrix_findings import interactions_of, verdicts_of
from polystem.harness.matrix_record import Matrix, MatrixCell, MatrixPlan, Replay
from polystem.harness.matrix_replays import because
from polystem.harness.verdict import jeffreys
from polystem.harness.witness import Outcome

QUANTS = {"F16": 0.0, "Q8_0": 0.0, "Q4_0": 0.1, "Q2_K": 0.5}
"""The share of packages that each drops when it is alone; company costs the coarse ones more."""

CAUSES: tuple[Outcome, ...] = ("parse", "wrong_tool", "wrong_argument", "timeout")


def synthetic_matrix(packages: int = 48, *, again: bool = True, seed: int = 0) -> Matrix:
    """Four quants at three concurrencies, each failing turn asked again but for a few."""
    plan = MatrixPlan(
        quants=tuple(QUANTS), concurrency=(1, 8, 32), again=again, replays=12,
        models={name: f"{place}a" * 32 for place, name in enumerate(QUANTS)},
        settings={"packages": packages, "steps": 12, "prefix_tokens": 1216, "seed": seed, "max_errors": 1,
                  "arms": ["pooled"]},
    )  # fmt: skip
    cells = [
        _cell(seed, Random(f"{seed}-{row}-{level}"), row, level, packages, place, len(plan.concurrency))
        for place, (level, row) in enumerate((level, row) for level in plan.concurrency for row in plan.rows)
    ]
    failing = sum(cell.failing for cell in cells)
    replays = tuple(each for cell in cells for each in _replays(cell, plan))
    return Matrix(
        plan=plan,
        machine={"cpu": "a processor", "cores": 2},
        started_at="2026-01-02T03:04:05+00:00",
        finished=True,
        cells=tuple(cells),
        verdicts=verdicts_of(plan, cells),
        interactions=interactions_of(plan, cells, seed=seed),
        replays=replays,
        not_replayed=failing - len(replays),
    )


def _cell(seed: int, dice: Random, quant: str, level: int, packages: int, place: int, levels: int) -> MatrixCell:
    drops = QUANTS[quant.split(" ")[0]] * (1 + level / 40)
    fixed = Random(f"{seed}-{quant.split(' ')[0]}")  # the same packages are hard at every concurrency
    delivered = tuple(fixed.random() >= drops for _ in range(packages))
    causes = Counter(CAUSES[dice.randrange(len(CAUSES) if level > 1 else 3)] for each in delivered if not each)
    changed = 0.0 if level == 1 else 0.3
    return MatrixCell(
        quant=quant,
        concurrency=level,
        place=place,
        folder=f"{quant.replace(' ', '-')}-at-{level}",
        delivered=jeffreys(sum(delivered), packages),
        clean=sum(delivered),
        errors=causes.total(),
        crossed=0,
        failing=causes.total(),
        dropped_by=dict(causes),
        delivered_by_package=delivered,
        transcripts=tuple(
            f"{each}-{level if dice.random() < changed else 0}-{place if dice.random() < changed else 0}"
            for each in delivered
        ),
    )


def _replays(cell: MatrixCell, plan: MatrixPlan) -> list[Replay]:
    causes: list[Outcome] = [cause for cause in CAUSES for _ in range(cell.dropped_by.get(cause, 0))]
    lost = [number for number, each in enumerate(cell.delivered_by_package) if not each]
    return [_replay(cell, package, cause) for package, cause in list(zip(lost, causes, strict=True))[: plan.replays]]


def _replay(cell: MatrixCell, package: int, cause: Outcome) -> Replay:
    alone: Outcome = "right" if cause == "timeout" or package % 5 == 0 else cause
    reference: Outcome = cause if package % 11 == 7 else "right"
    came = 'drive {"hub":"Oak"}'
    return Replay(
        quant=cell.quant, concurrency=cell.concurrency, package=package, turn=3, step=3, cause=cause,
        asked="drive(hub=Elm)", came=came, alone=alone, alone_came=came, reference=reference, reference_came=came,
        because=because(cause, alone, reference),
    )  # fmt: skip
