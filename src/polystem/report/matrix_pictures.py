"""Pictures of a matrix: what was delivered, quant and concurrency together, drops, replays, and the noise.

Knows no HTML page. Rows are cells, quants in the order they were asked for.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from polystem.harness.matrix_record import CellVerdict, Interaction, Matrix, MatrixCell
from polystem.harness.matrix_text import BECAUSE
from polystem.report.charts import Axis, Bars, Forest, ForestRow, Line, Lines, Stack
from polystem.report.html import Picture, Table
from polystem.report.package_pictures import ends_picture

__all__ = [
    "ROW_WORDS",
    "again_verdicts",
    "because_picture",
    "cell_drops_picture",
    "cell_name",
    "cells_in_order",
    "delivered_picture",
    "interaction_picture",
    "noise_picture",
]

ROW_WORDS = "quant and agents at a time"
UNASKED = "not asked again"
BECAUSE_HUES: Mapping[str, int | str] = {
    "quant": 1, "numerics": 0, "starvation": 4, "cross-talk": "bad", "model": 7, UNASKED: "queue",
}  # fmt: skip
BECAUSE_MEANING = (
    "Each failing turn was asked again with the same messages, alone with its quant and alone with the reference. "
    "Right alone: the company made it fail, by numerics of a wider batch, by starvation where no whole answer came in "
    "time, or by cross-talk. Wrong alone and right with the reference: the quant. Wrong with both: the model."
)


def cell_name(cell: MatrixCell | CellVerdict) -> str:
    """A row of a picture."""
    return f"{cell.quant} at {cell.concurrency}"


def cells_in_order(matrix: Matrix) -> Sequence[MatrixCell]:
    """Quants down, concurrency across, as they were asked for; cells run in another order."""
    plan = matrix.plan
    return [cell for row in plan.rows for level in plan.concurrency if (cell := matrix.cell(row, level)) is not None]


def _hue(matrix: Matrix, quant: str) -> int:
    return matrix.plan.rows.index(quant)


def again_verdicts(matrix: Matrix) -> Sequence[CellVerdict]:
    """The reference against itself, where it was run twice."""
    return [each for each in matrix.verdicts if each.quant not in matrix.plan.quants]


def delivered_picture(matrix: Matrix) -> Picture:
    """The share delivered of every cell, with its interval."""
    cells, levels = cells_in_order(matrix), matrix.plan.concurrency
    forest = Forest(
        Axis("share of packages delivered", most=1, percent=True),
        tuple(
            ForestRow(
                cell_name(cell), _share(cell), round(cell.delivered.low, 5), round(cell.delivered.high, 5),
                _hue(matrix, cell.quant),
            )
            for cell in cells
        ),
        at=None,
        title="each quant at each number of agents at a time, with Jeffreys' 95 % interval",
    )  # fmt: skip
    charts = (*((_slopes(matrix, cells),) if len(levels) > 1 else ()), forest) if cells else ()
    rows = tuple(
        (
            cell_name(cell),
            f"{cell.delivered.hits} of {cell.delivered.n}",
            f"{_share(cell):.1%}",
            f"{cell.delivered.low:.1%} to {cell.delivered.high:.1%}",
            str(cell.clean),
        )
        for cell in cells
    )
    head = (ROW_WORDS, "delivered", "share", "95 % interval", "of them without a wrong call")
    return Picture(
        "Packages delivered",
        "The same packages in every cell: where lines lie apart, a quant costs something; where they part further to "
        "the right, company costs it more. An interval speaks of its cell alone; the tests below go by pairs.",
        charts,
        Table("Packages delivered, with Jeffreys' 95 % interval of the share", head, rows),
    )


def _share(cell: MatrixCell) -> float:
    return round(cell.delivered.hits / cell.delivered.n, 5) if cell.delivered.n else 0.0


def _slopes(matrix: Matrix, cells: Sequence[MatrixCell]) -> Lines:
    """A line for each quant. Bands would lie on each other, so the intervals have a chart of their own."""
    lines = [
        Line(
            row,
            tuple((float(cell.concurrency), _share(cell)) for cell in cells if cell.quant == row),
            _hue(matrix, row),
            dotted=True,
            dashed=row not in matrix.plan.quants,
        )
        for row in matrix.plan.rows
        if any(cell.quant == row for cell in cells)
    ]
    x, y = Axis("agents at a time", whole=True), Axis("share of packages delivered", most=1, percent=True)
    return Lines(x, y, tuple(lines), title="share delivered against agents at a time")


def interaction_picture(matrix: Matrix) -> Picture:
    """What concurrency costs a quant beyond what it costs the reference."""
    named = [(f"{each.quant}, {each.low_concurrency} to {each.high_concurrency}", each) for each in matrix.interactions]
    chart = Forest(
        Axis("interaction, in shares of the packages", least=None),
        tuple(
            ForestRow(
                name,
                round(each.value, 5),
                None if each.interval is None else round(each.interval[0], 5),
                None if each.interval is None else round(each.interval[1], 5),
                _hue(matrix, each.quant),
            )
            for name, each in named
        ),
        at=0,
        bare="no interval: all packages alike",
    )
    rows = tuple(
        (
            name,
            f"{each.value:+.3f}",
            "none: all packages alike"
            if each.interval is None
            else f"{each.interval[0]:+.3f} to {each.interval[1]:+.3f}",
            f"{each.moved} of {each.n}",
            _shown(each, matrix.plan.reference),
        )
        for name, each in named
    )
    head = (ROW_WORDS, "interaction", "95 % interval", "packages that moved", "verdict")
    reference = matrix.plan.reference
    return Picture(
        "Quant and concurrency together",
        f"What more agents at a time cost a quant beyond what they cost {reference}: [(quant, many) - (quant, few)] - "
        f"[({reference}, many) - ({reference}, few)], with its 95 % bootstrap interval by package. Left of 0 the quant "
        "suffers more; where the interval holds 0 it is not distinguished.",
        (chart,),
        Table("Interaction, in shares of the packages", head, rows),
    )


def _shown(each: Interaction, reference: str) -> str:
    if not each.shows:
        return "NOT DISTINGUISHED"
    return f"loses {'more' if each.value < 0 else 'less'} than {reference}"


def cell_drops_picture(matrix: Matrix) -> Picture:
    """What became of the packages of each cell."""
    return ends_picture(ROW_WORDS, [(cell_name(cell), _ends(cell)) for cell in cells_in_order(matrix)])


def _ends(cell: MatrixCell) -> Counter[str]:
    dropped = Counter({str(cause): int(count) for cause, count in cell.dropped_by.items()})
    missing = cell.delivered.n - cell.delivered.hits - dropped.total()
    return dropped + Counter({"delivered": cell.delivered.hits, "not ended": max(missing, 0)})


def because_picture(matrix: Matrix) -> Picture:
    """Failing turns of every cell by what made them fail."""
    counted: list[tuple[MatrixCell, Counter[str]]] = []
    for cell in cells_in_order(matrix):
        if cell.failing:
            own = [r for r in matrix.replays if (r.quant, r.concurrency) == (cell.quant, cell.concurrency)]
            because = Counter[str](each.because for each in own)
            counted.append((cell, because + Counter({UNASKED: max(cell.failing - len(own), 0)})))
    words = [word for word in (*BECAUSE, UNASKED) if any(counts[word] for _, counts in counted)]
    stacks = tuple(Stack(word, tuple(counts[word] for _, counts in counted), BECAUSE_HUES[word]) for word in words)
    head = (ROW_WORDS, "failing turns", *BECAUSE, UNASKED)
    rows = tuple(
        (cell_name(cell), str(cell.failing), *(str(counts[word]) for word in (*BECAUSE, UNASKED)))
        for cell, counts in counted
    )
    left = f"{matrix.not_replayed} failing turns were not asked again; --replays takes more of a cell."
    return Picture(
        "Why turns failed: what the replays say",
        f"{BECAUSE_MEANING} One turn asked once is an observation and no proof.",
        (Bars(Axis("failing turns", whole=True), tuple(cell_name(cell) for cell, _ in counted), stacks, stacked=True),),
        Table("Failing turns by what made them fail", head, rows),
        note=left if matrix.not_replayed else "",
    )


def noise_picture(matrix: Matrix) -> Picture:
    """Each row against the reference, the reference's own second run first: what no change at all looks like."""
    again = again_verdicts(matrix)
    rows = [*again, *(each for each in matrix.verdicts if each.quant in matrix.plan.quants)]
    stacks = (
        Stack("other words", tuple(_of(each.other_words, each.n) for each in rows), "queue"),
        Stack("another end", tuple(_of(each.lost + each.won, each.n) for each in rows), 1),
    )
    shares = Axis("share of the packages", most=1, percent=True)
    table = tuple(
        (
            cell_name(each),
            f"{each.other_words} of {each.n}",
            f"{each.lost + each.won} of {each.n}",
            str(each.lost),
            str(each.won),
        )
        for each in rows
    )
    head = (ROW_WORDS, "other words", "another end", "lost", "won")
    reference = matrix.plan.reference
    told = (
        f"The rows that are called again are {reference} itself, run a second time: only what goes beyond them can be "
        "a quant's doing."
        if again
        else f"{reference} was not run twice, so what no change looks like is not known; add --again."
    )
    return Picture(
        "The noise floor: what differs from the reference",
        f"Packages whose transcript differs in any word from {reference}'s at the same concurrency, and those that "
        f"only one of the two delivered. {told}",
        (Bars(shares, tuple(cell_name(each) for each in rows), stacks, stacked=False),) if rows else (),
        Table(f"Packages that differ from those of {reference}", head, table),
    )


def _of(count: int, n: int) -> float:
    return round(count / n, 5) if n else 0.0
