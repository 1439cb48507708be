"""The report of a matrix: which quant is worse at which concurrency, what concurrency adds, and why turns failed."""

from __future__ import annotations

from collections.abc import Mapping

from polystem.harness.counting import from_one
from polystem.harness.matrix_record import Matrix
from polystem.harness.matrix_text import verdict_text
from polystem.harness.record import Record
from polystem.report.crossings import crossings_in, crossings_table
from polystem.report.html import Table
from polystem.report.matrix_pictures import (
    ROW_WORDS,
    because_picture,
    cell_drops_picture,
    cell_name,
    cells_in_order,
    delivered_picture,
    interaction_picture,
    noise_picture,
)
from polystem.report.matrix_verdict import matrix_verdict
from polystem.report.page import Part, Tables, page_html

__all__ = ["matrix_html"]

KICKER = "Courier matrix: quant against concurrency"
REPLAY_ROWS = 200


def matrix_html(matrix: Matrix, records: Mapping[str, Record]) -> str:
    """The page of a matrix. `records` has the record of every cell in which a call crossed, by the cell's folder."""
    crossings = [each for name, record in records.items() for each in crossings_in(record, name)]
    crossed = crossings_table(crossings)
    parts: list[Part] = [
        *(() if crossed is None else (Tables("Cross-talk", crossed, "failures"),)),
        delivered_picture(matrix),
        Tables(f"Against {matrix.plan.reference}", _verdicts_table(matrix), "ladder"),
        *((interaction_picture(matrix),) if matrix.interactions else ()),
        cell_drops_picture(matrix),
        *((because_picture(matrix),) if any(cell.failing for cell in matrix.cells) else ()),
        *((Tables("Turns that failed", _replays_table(matrix), "failures replays"),) if matrix.replays else ()),
        noise_picture(matrix),
        Tables("All cells", _cells_table(matrix), "runs"),
        Tables("What was run, on what", _settings_table(matrix), "settings"),
    ]
    return page_html(KICKER, matrix_verdict(matrix, records), parts)


def _verdicts_table(matrix: Matrix) -> Table:
    rows = tuple(
        (
            cell_name(each),
            verdict_text(each),
            str(each.lost),
            str(each.won),
            f"{each.p_value:.3g}",
            f"{each.p_holm:.3g}",
            f"{each.collapse.outcome} after {each.collapse.after}",
        )
        for each in matrix.verdicts
    )
    head = (ROW_WORDS, "verdict", "lost", "won", "p", "p (Holm)", "test of collapse, packages")
    note = (
        f"Package by package against {matrix.plan.reference} at the same concurrency. Lost: delivered by "
        f"{matrix.plan.reference} alone; won: by the quant alone. p: exact one-sided McNemar test; Holm: "
        "adjusted within the quants of that concurrency. Collapse: Wald's sequential test. Two files are never said to "
        "be equal."
    )
    return Table("What may be said of each quant", head, rows, note)


def _replays_table(matrix: Matrix) -> Table:
    rows = tuple(
        (
            f"{each.quant} at {each.concurrency}: package {each.package}",
            each.because,
            from_one(each.turn),
            each.cause,
            each.asked,
            each.came,
            _told(each.alone, each.alone_came),
            _told(each.reference, each.reference_came),
        )
        for each in matrix.replays[:REPLAY_ROWS]
    )
    reference = matrix.plan.reference
    head = (
        "cell and package", "because of", "turn", "cause", "what was due", "what came", "alone", f"{reference} alone",
    )  # fmt: skip
    left = len(matrix.replays) - REPLAY_ROWS
    note = f"{REPLAY_ROWS} of {len(matrix.replays)} turns; matrix.json has all." if left > 0 else ""
    return Table("Turns that failed, and how they came out alone", head, rows, note)


def _told(outcome: str, came: str) -> str:
    return outcome if outcome == "right" else f"{outcome}: {came}"


def _cells_table(matrix: Matrix) -> Table:
    rows = tuple(
        (
            cell_name(cell),
            str(cell.place + 1),
            f"{cell.delivered.hits} of {cell.delivered.n}",
            str(cell.errors),
            str(cell.crossed),
            str(cell.failing),
            cell.folder,
        )
        for cell in cells_in_order(matrix)
    )
    head = (ROW_WORDS, "run as", "delivered", "wrong calls", "cross-talk", "failing turns", "folder")
    note = "Each folder has a record: `polystem report` makes a page of it."
    return Table("Every cell", head, rows, note)


def _settings_table(matrix: Matrix) -> Table:
    plan = matrix.plan
    groups = {"model: sha256": plan.models, "machine": matrix.machine, "settings": plan.settings}
    rows = [(f"{group}: {name}", str(value)) for group, values in groups.items() for name, value in values.items()]
    rows += [
        ("reference", plan.reference),
        ("failing turns of a cell that are asked again, at most", str(plan.replays)),
    ]
    return Table("What was asked", ("setting", "value"), tuple(rows))
