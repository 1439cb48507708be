"""Pictures that set arms side by side: delivery times, and wall time against share under the floor."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from polystem.harness.metrics import KEEPS_FLOOR, ArmSummary
from polystem.harness.rows import PackageRow
from polystem.report.charts import Axis, Dot, Dots, Line, Lines, Rule
from polystem.report.html import Picture, Table
from polystem.report.views import ArmView

__all__ = ["Arm", "delivery_picture", "front_of", "front_picture"]

SHOWN_PERCENTS = (5, 25, 50, 75, 90, 95, 99, 100)
CURVE_POINTS = 100


@dataclass(frozen=True, slots=True)
class Arm:
    """An arm with its figures."""

    view: ArmView
    summary: ArmSummary


def delivery_picture(views: Sequence[ArmView]) -> Picture:
    """How long deliveries took, from submission and from admission."""
    delivered = [(view, [row for row in view.packages if row.outcome == "delivered"]) for view in views]
    lines: list[Line] = []
    for view, rows in delivered:
        lines += [
            Line(f"{view.label}, from submission", _curve(_from_submission(rows)), view.hue),
            Line(f"{view.label}, from admission", _curve(_from_admission(rows)), view.hue, dashed=True),
        ]
    drawn = tuple(line for line in lines if line.points)
    return Picture(
        "Delivery times",
        "Seconds from a package's submission to its delivery, and from its first turn's admission (dashed), in the "
        "order of their length: at 50 % stands the median. A queue shows as the distance between the two.",
        (Lines(Axis("percent of the delivered packages", most=100), Axis("seconds to delivery"), drawn),)
        if drawn
        else (),
        _delivery_table(delivered),
    )


def _from_submission(rows: Sequence[PackageRow]) -> list[float]:
    return sorted(row.ended_s - row.submitted_s for row in rows)


def _from_admission(rows: Sequence[PackageRow]) -> list[float]:
    return sorted(row.ended_s - row.admitted_s for row in rows if row.admitted_s is not None)


def _curve(times_s: Sequence[float]) -> tuple[tuple[float, float], ...]:
    """The percentiles, at most about a hundred of them."""
    if not times_s:
        return ()
    if len(times_s) == 1:
        return ((0.0, round(times_s[0], 3)), (100.0, round(times_s[0], 3)))
    points = min(CURVE_POINTS, len(times_s) - 1)
    return tuple(
        (100 * index / points, round(_percentile(times_s, 100 * index / points), 3)) for index in range(points + 1)
    )


def _percentile(ordered: Sequence[float], percent: float) -> float:
    """Interpolated between neighbours, as `harness.metrics` does."""
    place = percent / 100 * (len(ordered) - 1)
    low = int(place)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (place - low)


def _delivery_table(delivered: Sequence[tuple[ArmView, Sequence[PackageRow]]]) -> Table:
    rows = tuple(
        (f"{view.label}, {since}", str(len(times_s)), *(_seconds(times_s, percent) for percent in SHOWN_PERCENTS))
        for view, packages in delivered
        for since, times_s in (
            ("from submission", _from_submission(packages)),
            ("from admission", _from_admission(packages)),
        )
    )
    head = ("arm", "delivered", *("longest" if percent == 100 else f"{percent} %" for percent in SHOWN_PERCENTS))
    return Table("Seconds to delivery", head, rows)


def _seconds(times_s: Sequence[float], percent: float) -> str:
    return f"{_percentile(times_s, percent):.2f}" if times_s else "-"


def front_picture(arms: Sequence[Arm]) -> Picture:
    """Wall time against share under the floor; lower is better in both."""
    placed = [
        (arm, arm.summary.wall_s, arm.summary.under_share)
        for arm in arms
        if arm.summary.wall_s is not None and arm.summary.under_share is not None
    ]
    dots = tuple(
        Dot(arm.view.label, round(wall_s, 3), round(share, 5), arm.view.hue, filled=arm.summary.whole)
        for arm, wall_s, share in placed
    )
    front = front_of([(dot.x, dot.y) for dot in dots if dot.filled])
    chart = Dots(
        Axis("wall time, seconds", least=None),
        Axis("share of decode time under the floor", percent=True),
        dots,
        front,
        (Rule("y", KEEPS_FLOOR, f"{KEEPS_FLOOR:.0%}: kept"),),
    )
    return Picture(
        "The front: wall time against share under the floor",
        "Lower is better on both axes; the line joins the arms that no other beats on both. A hollow point did not "
        "deliver everything and is on no front. Wall time runs to the last delivery.",
        (chart,) if dots else (),
        _front_table(arms, set(front)),
        note="" if dots else "Without a floor there is nothing to set wall time against.",
    )


def front_of(points: Sequence[tuple[float, float]]) -> tuple[tuple[float, float], ...]:
    """The points that no other equals or beats on both axes, in ascending x."""
    front: list[tuple[float, float]] = []
    for point in sorted(set(points)):
        if not front or point[1] < front[-1][1]:
            front.append(point)
    return tuple(front)


def _front_table(arms: Sequence[Arm], front: set[tuple[float, float]]) -> Table:
    rows = tuple(
        (
            arm.view.label,
            _or_dash(arm.summary.wall_s, ".1f"),
            _or_dash(arm.summary.under_share, ".2%"),
            _or_dash(arm.summary.deep_share, ".2%"),
            f"{arm.summary.delivered} of {arm.summary.packages}",
            f"{arm.summary.workers_mean:.1f}",
            "yes" if _place(arm.summary) in front and arm.summary.whole else "no",
        )
        for arm in arms
    )
    head = ("arm", "wall, s", "under the floor", "under half of it", "delivered", "workers, mean", "on the front")
    return Table("Wall time and time under the floor", head, rows)


def _place(summary: ArmSummary) -> tuple[float, float] | None:
    if summary.wall_s is None or summary.under_share is None:
        return None
    return round(summary.wall_s, 3), round(summary.under_share, 5)


def _or_dash(value: float | None, form: str) -> str:
    return "-" if value is None else format(value, form)
