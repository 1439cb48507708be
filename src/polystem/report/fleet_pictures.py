"""Pictures of the fleet over time: agents by what they do, and KV cells with sharing and without."""

from __future__ import annotations

from collections.abc import Sequence

from polystem.report.charts import Axis, Line, Lines
from polystem.report.fleet import AgentsAt, CellsAt, agents_over_time, cells_over_time, stretch_s
from polystem.report.html import Picture, Table
from polystem.report.views import ArmView

__all__ = ["agents_picture", "cells_picture"]

POINTS = 600
"""Most points of one line; a longer arm is told in stretches of time."""
TABLE_ROWS = 60
"""Most rows of one arm in a table of samples."""
CROWDED = 3
"""How many times as many agents have to be live as are let in for these to have a chart of their own."""
SECONDS = Axis("seconds since the arm began")


def agents_picture(view: ArmView) -> Picture:
    """What the agents of one arm were doing."""
    at = agents_over_time(view, POINTS)
    width_s = stretch_s(view, POINTS)
    lines = [
        _agents_line("decoding", "decode", at, [each.decoding for each in at]),
        _agents_line("in tools", "tools", at, [each.tools for each in at]),
        _agents_line("waiting or in prefill", "queue", at, [each.queued for each in at]),
    ]
    if any(each.waiting is not None for each in at):
        lines.append(_agents_line("queued at the gate", "queued", at, [each.waiting for each in at], own=True))
    if any(each.held is not None for each in at):
        lines.append(_agents_line("held by the gate", "held", at, [each.held for each in at], own=True))
    return Picture(
        f"Workers over time: {view.label}",
        "Agents by what they do; the top of the stack is how many are live. Queued at the gate and held are counted by "
        "the server, all else by the harness.",
        (Lines(SECONDS, Axis("agents", whole=True), tuple(lines)), *_let_in_chart(at)),
        _agents_table(view, at),
        note=f"Each point is the mean of {width_s:.3g} s." if width_s else "",
    )


def _let_in_chart(at: Sequence[AgentsAt]) -> tuple[Lines, ...]:
    """Those that the gate let in, alone, where who queues at it would press them to the ground of the picture."""
    let_in = [None if each.waiting is None else each.live - each.waiting for each in at]
    most = max((each for each in let_in if each is not None), default=0.0)
    if not most or max(each.live for each in at) < CROWDED * most:
        return ()
    inside = [None if each.waiting is None else max(each.queued - each.waiting, 0.0) for each in at]
    lines = [
        _agents_line("decoding", "decode", at, [each.decoding for each in at]),
        _agents_line("in tools", "tools", at, [each.tools for each in at]),
        _agents_line("held or in prefill", "queue", at, inside),
    ]
    return (Lines(SECONDS, Axis("agents let in", whole=True), tuple(lines), title="those let in alone"),)


def _agents_line(
    name: str, hue: str, at: Sequence[AgentsAt], values: Sequence[float | None], *, own: bool = False
) -> Line:
    points = tuple(
        (_s(each.at_s), value if value is None else round(value, 2)) for each, value in zip(at, values, strict=True)
    )
    return Line(name, points, hue, steps="end", dashed=own, stacked=not own)


def _s(value: float) -> float:
    return round(value, 2)


def _agents_table(view: ArmView, at: Sequence[AgentsAt]) -> Table:
    thinned, note = _thinned(at)
    rows = tuple(
        (
            f"{each.at_s:.2f}",
            *(_figure(value) for value in (each.live, each.decoding, each.tools, each.queued, each.waiting, each.held)),
        )
        for each in thinned
    )
    head = ("second", "live", "decoding", "in tools", "waiting or in prefill", "queued at the gate", "held")
    return Table(f"Agents of the arm {view.label}", head, rows, note)


def _figure(value: float | None) -> str:
    return "-" if value is None else f"{value:.4g}"


def _thinned(values: Sequence[AgentsAt]) -> tuple[Sequence[AgentsAt], str]:
    stride = -(-len(values) // TABLE_ROWS) or 1
    return values[::stride], _left_out(len(values), stride)


def _left_out(count: int, stride: int) -> str:
    return f"Every {stride}th of {count} points of the picture." if stride > 1 else ""


def cells_picture(views: Sequence[ArmView]) -> Picture:
    """Cells in use against what the same agents would hold without sharing, and both for each agent."""
    cells = [cells_over_time(view, POINTS) for view in views]
    widest_s = max((stretch_s(view, POINTS) for view in views), default=0.0)
    known = [(view, at) for view, at in zip(views, cells, strict=True) if at]
    return Picture(
        "KV cells over time",
        "Cells in use, and the cells that the same agents would hold without sharing (naive, dashed). Below: both for "
        "each agent that was let in, which is its context; and the reduction, naive over used.",
        (_cells_chart(known), _context_chart(known), _reduction_chart(known)) if known else (),
        _cells_table(known),
        note=_cells_note(widest_s, [view.label for view, at in zip(views, cells, strict=True) if not at]),
    )


def _cells_note(widest_s: float, bare: Sequence[str]) -> str:
    notes = [f"Of each {widest_s:.3g} s the fullest sample is shown."] if widest_s else []
    notes += [f"The server of {', '.join(bare)} reported no cells."] if bare else []
    return " ".join(notes)


def _cells_chart(known: Sequence[tuple[ArmView, Sequence[CellsAt]]]) -> Lines:
    lines = [
        line
        for view, at in known
        for line in (
            Line(f"{view.label}, in use", tuple((_s(each.at_s), each.used) for each in at), view.hue, steps="end"),
            Line(
                f"{view.label}, naive",
                tuple((_s(each.at_s), each.naive) for each in at),
                view.hue,
                dashed=True,
                steps="end",
            ),
        )
    ]
    return Lines(SECONDS, Axis("KV cells", whole=True), tuple(lines))


def _context_chart(known: Sequence[tuple[ArmView, Sequence[CellsAt]]]) -> Lines:
    lines = [
        Line(
            f"{view.label}, {name}",
            tuple((_s(each.at_s), _whole(each.for_each(each.naive if dashed else each.used))) for each in at),
            view.hue,
            dashed=dashed,
            steps="end",
        )
        for view, at in known
        for name, dashed in (("in use", False), ("naive", True))
    ]
    return Lines(SECONDS, Axis("KV cells for each agent", whole=True), tuple(lines), title="context for each agent")


def _reduction_chart(known: Sequence[tuple[ArmView, Sequence[CellsAt]]]) -> Lines:
    lines = [
        Line(view.label, tuple((_s(each.at_s), _ratio(each.reduction)) for each in at), view.hue, steps="end")
        for view, at in known
    ]
    agents = [
        Line(
            f"{view.label}, agents",
            tuple((_s(each.at_s), each.let_in) for each in at),
            view.hue,
            dashed=True,
            steps="end",
            on_right=True,
        )
        for view, at in known
    ]
    return Lines(
        SECONDS,
        Axis("naive over used cells"),
        (*lines, *agents),
        right=Axis("agents let in", whole=True),
        title="reduction, and the agents it is for",
    )


def _whole(value: float | None) -> float | None:
    return None if value is None else round(value)


def _ratio(value: float | None) -> float | None:
    return None if value is None else round(value, 3)


def _cells_table(known: Sequence[tuple[ArmView, Sequence[CellsAt]]]) -> Table:
    rows: list[tuple[str, ...]] = []
    notes: dict[str, None] = {}
    for view, at in known:
        stride = -(-len(at) // TABLE_ROWS) or 1
        rows += [_cells_row(view, each) for each in at[::stride]]
        if note := _left_out(len(at), stride):
            notes[f"{view.label}: {note}"] = None
    head = (
        "arm and second",
        "used",
        "in pools",
        "private",
        "naive",
        "naive / used",
        "agents let in",
        "used / agent",
        "naive / agent",
    )
    return Table("KV cells", head, tuple(rows), " ".join(notes))


def _cells_row(view: ArmView, each: CellsAt) -> tuple[str, ...]:
    counts = (each.used, each.pool, each.private, each.naive)
    context = (each.for_each(each.used), each.for_each(each.naive))
    return (
        f"{view.label} {each.at_s:.2f}",
        *(str(count) for count in counts),
        "-" if each.reduction is None else f"{each.reduction:.2f}",
        str(each.let_in),
        *("-" if value is None else f"{value:.0f}" for value in context),
    )
