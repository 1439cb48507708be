"""Pictures of packages: the time line, drops by cause, and what went wrong with each that was dropped."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from polystem.harness.counting import from_one
from polystem.harness.rows import PackageRow
from polystem.report.charts import Axis, Bars, Stack, TimeLine
from polystem.report.html import Picture, Table
from polystem.report.packages import PHASES, PackageLine, chosen, package_lines, shortened
from polystem.report.views import ArmView

__all__ = ["FAILURE_ROWS", "drops_picture", "ends_picture", "failures_table", "time_line_picture"]

DRAWN_PACKAGES = 100
"""Most bars of one time line."""
DRAWN_SEGMENTS = 16_000
"""Most stretches that the time lines of a page draw, all together: it keeps a page quick to open and small."""
TABLE_PACKAGES = 1_000
FAILURE_ROWS = 200
DROP_HUES = (7, 1, 3, 5, 4, 6)
"""Colours of causes; none looks like that of a delivery."""
PHASE_MEANING = (
    "Waiting until its turn is let in (queue), waiting though it was let in (held), prefill, decode, tools. Gaps are "
    "the harness itself, and waits between attempts."
)


def time_line_picture(view: ArmView, arms: int) -> Picture:
    """One bar for each package, or for some of many; `arms` share the page's room for stretches."""
    lines = package_lines(view)
    drawn = chosen(lines, DRAWN_PACKAGES)
    drawn, finest_s = _fitted(drawn, DRAWN_SEGMENTS // max(arms, 1))
    return Picture(
        f"Packages over time: {view.label}",
        f"One bar for each package, from its submission. {PHASE_MEANING}",
        (_chart(drawn),) if drawn else (),
        _packages_table(view, lines),
        note=_what_is_left_out(lines, drawn, finest_s),
    )


def _fitted(lines: Sequence[PackageLine], most: int) -> tuple[Sequence[PackageLine], float]:
    """The lines with at most about `most` stretches in all, and the length that stretches were made for it."""
    finest_s = 0.0
    fitted = lines
    span_s = max((line.segments[-1].end_s for line in lines if line.segments), default=0.0)
    while span_s and sum(len(line.segments) for line in fitted) > most:
        finest_s = finest_s * 1.5 or span_s / 4000
        fitted = [shortened(line, finest_s) for line in lines]
    return fitted, finest_s


def _what_is_left_out(lines: Sequence[PackageLine], drawn: Sequence[PackageLine], finest_s: float) -> str:
    notes: list[str] = []
    if len(drawn) < len(lines):
        ill = sum(not line.delivered for line in lines)
        shown = sum(not line.delivered for line in drawn)
        notes.append(
            f"{len(drawn)} of {len(lines)} packages are drawn: {shown} of the {ill} that were not delivered, and of "
            "the others some, evenly spaced in their order."
        )
    if finest_s:
        notes.append(f"Stretches shorter than {finest_s:.2g} s are taken together, as the phase of their longest part.")
    return " ".join(notes)


def _chart(lines: Sequence[PackageLine]) -> TimeLine:
    segments = tuple(
        (PHASES.index(each.phase), row, round(each.start_s, 3), round(each.end_s, 3), each.step + 1)
        for row, line in enumerate(lines)
        for each in line.segments
    )
    present = tuple(phase for index, phase in enumerate(PHASES) if any(each[0] == index for each in segments))
    return TimeLine(
        Axis("seconds since the arm began"),
        rows=tuple(f"{line.package} {line.end}" for line in lines),
        ends=tuple(line.delivered for line in lines),
        phases=present,
        segments=tuple((present.index(PHASES[each[0]]), *each[1:]) for each in segments),
    )


def _packages_table(view: ArmView, lines: Sequence[PackageLine]) -> Table:
    shown = chosen(lines, TABLE_PACKAGES)
    head = ("package", "end", "steps", "turns", "wrong calls", *PHASES, "after")
    note = f"{len(shown)} of {len(lines)} packages; the record has all." if len(shown) < len(lines) else ""
    return Table(f"Packages of the arm {view.label}; times in seconds", head, tuple(map(_package_row, shown)), note)


def _package_row(line: PackageLine) -> tuple[str, ...]:
    spent = [f"{line.spent_s(phase):.2f}" for phase in PHASES]
    row = line.row
    if row is None:
        return (str(line.package), "not ended", "-", "-", "-", *spent, "-")
    end = row.outcome if row.cause is None else f"dropped: {row.cause} ({row.detail})"
    name, steps = f"{line.package} ({row.package_id})", f"{row.steps_taken} of {row.steps}"
    return (name, end, steps, str(row.turns), str(row.errors), *spent, f"{row.ended_s - row.submitted_s:.2f}")


def drops_picture(views: Sequence[ArmView]) -> Picture:
    """How many packages each arm delivered, and dropped for which cause."""
    return ends_picture("arm", [(view.label, _ends(view)) for view in views])


def ends_picture(what: str, ends: Sequence[tuple[str, Counter[str]]]) -> Picture:
    """What became of the packages of each row: delivered, dropped by cause, or not ended. `what` names a row."""
    causes = sorted({cause for _, each in ends for cause in each} - {"delivered", "not ended"})
    words = ("delivered", *causes, *(("not ended",) if any(each["not ended"] for _, each in ends) else ()))
    stacks = tuple(
        Stack(word, tuple(each[word] for _, each in ends), _end_hue(word, index)) for index, word in enumerate(words)
    )
    rows = tuple((label, *(str(each[word]) for word in words)) for label, each in ends)
    dropped = sum(each[cause] for _, each in ends for cause in causes)
    return Picture(
        "Drops by cause",
        "What became of the packages." if dropped else "What became of the packages: none was dropped.",
        (Bars(Axis("packages", whole=True), tuple(label for label, _ in ends), stacks, stacked=True),) if ends else (),
        Table("Packages by their end", (what, *words), rows),
    )


def _ends(view: ArmView) -> Counter[str]:
    ends = Counter("delivered" if row.outcome == "delivered" else row.cause or "unknown" for row in view.packages)
    missing = view.record.manifest.packages - len(view.packages)
    return ends + Counter({"not ended": max(missing, 0)})


def _end_hue(word: str, index: int) -> int | str:
    return {"delivered": "good", "cross_talk": "bad", "not ended": "queue"}.get(word, DROP_HUES[index % len(DROP_HUES)])


def failures_table(views: Sequence[ArmView]) -> Table | None:
    """Of every package that was dropped: at which turn, what was due there and what came; None where there is none."""
    dropped = [(view, row) for view in views for row in view.packages if row.outcome == "dropped"]
    if not dropped:
        return None
    rows = tuple(_failure_row(view, row) for view, row in dropped[:FAILURE_ROWS])
    note = (
        f"{FAILURE_ROWS} of {len(dropped)} dropped packages; the record has all." if len(dropped) > FAILURE_ROWS else ""
    )
    head = ("arm and package", "cause", "turn", "step", "what was due", "what came", "more")
    return Table("Packages that were dropped", head, rows, note)


def _failure_row(view: ArmView, row: PackageRow) -> tuple[str, ...]:
    return (
        f"{view.label} {row.package} ({row.package_id})",
        row.cause or "unknown",
        from_one(row.failed_turn),
        f"{row.steps_taken + 1} of {row.steps}",
        row.asked or "-",
        row.came or "-",
        row.detail,
    )
