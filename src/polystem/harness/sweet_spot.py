"""Which floor to take, from the runs of a sweep: the highest that costs no package and next to no time.

Knows no file and no server: arithmetic over runs. A floor is *within* where its wall time is at most `margin` longer
than the best one's, and the whole interval says so. The best is the floor with the least mean wall time of those that
delivered everything, the same agents without a gate among them. Repeats are pairs: what the machine did to one repeat
of a sweep it did to all floors of it.
Invariant: the sweet spot is within, delivered every package in every repeat, and kept its floor.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from polystem.harness.counting import counted
from polystem.harness.intervals import Interval, Level, log_ratio
from polystem.harness.metrics import KEEPS_FLOOR
from polystem.harness.sweep_record import NO_FLOOR, FloorFinding, Standing, SweepPlan, SweepRun, SweetSpot

__all__ = ["findings_of", "floors_left", "is_clear", "sweet_spot_of"]

LEAST_REPEATS = 3
"""Before so many repeats nothing is clear enough to stop."""

STOPPING_LEVEL: Level = 99
"""A sweep that may stop looks at its answer after every round, and each look is a chance to be wrong."""


@dataclass(frozen=True, slots=True)
class _Floor:
    """The runs of one floor, by repeat."""

    floor_tps: float
    runs: Mapping[int, SweepRun]

    @property
    def whole(self) -> bool:
        return all(run.whole and run.wall_s for run in self.runs.values())

    @property
    def walls_s(self) -> list[float]:
        return [run.wall_s for run in self.runs.values() if run.wall_s]

    @property
    def under_shares(self) -> list[float]:
        return [run.under_share for run in self.runs.values() if run.under_share is not None]

    def over(self, other: _Floor, level: Level) -> Interval | None:
        """Its wall over another's, by the repeats that both have."""
        both = sorted(self.runs.keys() & other.runs.keys())
        pairs = [(self.runs[repeat].wall_s, other.runs[repeat].wall_s) for repeat in both]
        known = [(ours, theirs) for ours, theirs in pairs if ours and theirs]
        if not known:
            return None
        return log_ratio([ours for ours, _ in known], [theirs for _, theirs in known], level=level)


def findings_of(plan: SweepPlan, runs: Sequence[SweepRun]) -> tuple[FloorFinding, ...]:
    """What the runs so far say of each floor that has one, from the lowest up."""
    floors = [
        _Floor(floor_tps, found)
        for floor_tps in sorted(plan.floors_tps)
        if (found := {run.repeat: run for run in runs if run.floor_tps == floor_tps})
    ]
    best = _best(floors)
    found = [_finding(plan, floor, best) for floor in floors]
    sweet = max((each.floor_tps for each in found if each.standing == "within" and each.floor_tps), default=None)
    return tuple(replace(each, standing="sweet spot") if each.floor_tps == sweet else each for each in found)


def _best(floors: Sequence[_Floor]) -> _Floor | None:
    whole = [floor for floor in floors if floor.whole]
    return min(whole, key=lambda floor: statistics.fmean(map(math.log, floor.walls_s)), default=None)


def _finding(plan: SweepPlan, floor: _Floor, best: _Floor | None) -> FloorFinding:
    ratio = None if best is None or not floor.whole else floor.over(best, 95)
    standing, settled, why = _standing(plan, floor, best, ratio)
    return FloorFinding(
        floor_tps=floor.floor_tps,
        repeats=len(floor.runs),
        whole_repeats=sum(run.whole for run in floor.runs.values()),
        wall_s=statistics.median(floor.walls_s) if floor.walls_s else None,
        under_share=statistics.median(floor.under_shares) if floor.under_shares else None,
        ratio=ratio,
        standing=standing,
        settled=settled,
        why=why,
    )


def _standing(
    plan: SweepPlan, floor: _Floor, best: _Floor | None, ratio: Interval | None
) -> tuple[Standing, bool, str]:
    enough = len(floor.runs) >= LEAST_REPEATS
    spoiled = [run for run in floor.runs.values() if not run.whole]
    if spoiled:
        run = spoiled[0]
        crossed = f", {counted(run.crossed, 'call')} crossed" if run.crossed else ""
        return "not whole", True, f"{run.delivered} of {run.packages} delivered in repeat {run.repeat}{crossed}"
    broken = [share > KEEPS_FLOOR for share in floor.under_shares]
    if floor.floor_tps and broken and statistics.median(floor.under_shares) > KEEPS_FLOOR:
        share = statistics.median(floor.under_shares)
        return (
            "floor not kept",
            enough and all(broken),
            f"{share:.1%} of decode time under it; {KEEPS_FLOOR:.0%} may be",
        )
    if best is None or ratio is None:
        return "undecided", False, "no wall time to compare"
    if best is floor and len(floor.runs) > 1:
        return "within", enough, f"the least wall time of {len(floor.runs)} repeats"
    edge, text = 1 + plan.margin, _ratio_text(ratio, best)
    if ratio.low is None or ratio.high is None:
        return "undecided", False, f"{text}; one repeat shows no interval"
    stopping = floor.over(best, STOPPING_LEVEL)
    assert stopping is not None
    assert stopping.low is not None
    assert stopping.high is not None
    if ratio.high <= edge:
        return "within", enough and stopping.high <= edge, text
    if ratio.low > edge:
        return "too slow", enough and stopping.low > edge, text
    return "undecided", False, f"{text}; the margin of {plan.margin:.0%} lies inside the interval"


def _ratio_text(ratio: Interval, best: _Floor) -> str:
    interval = "" if ratio.low is None or ratio.high is None else f" ({ratio.low:.3f} to {ratio.high:.3f})"
    return f"wall {ratio.ratio:.3f}{interval} of that {floor_text(best.floor_tps)}"


def floor_text(floor_tps: float) -> str:
    """A floor of a sweep in words."""
    return "without a gate" if floor_tps == NO_FLOOR else f"at {floor_tps:g} tokens/s"


def sweet_spot_of(plan: SweepPlan, findings: Sequence[FloorFinding]) -> SweetSpot:
    """The answer with its evidence, or that there is none and why."""
    whole = [each for each in findings if each.standing not in ("not whole",) and each.wall_s is not None]
    best = next((each for each in whole if each.ratio is not None and each.ratio.ratio == 1.0), None)
    best_tps = None if best is None else best.floor_tps
    sweet = next((each for each in findings if each.standing == "sweet spot"), None)
    if sweet is None:
        return SweetSpot(None, best_tps, _why_none(plan, findings), _open_above(findings, 0.0))
    above = _open_above(findings, sweet.floor_tps)
    why = (
        f"the highest floor that delivered every package in all of {sweet.repeats} repeats, kept its floor "
        f"({_share_text(sweet)}), and is within {plan.margin:.0%} of the best wall time: {sweet.why}"
    )
    if above:
        why += f"; {', '.join(f'{floor:g}' for floor in above)} may be within too: more repeats would tell"
    return SweetSpot(sweet.floor_tps, best_tps, why, above)


def _share_text(finding: FloorFinding) -> str:
    return (
        "nothing was decoded" if finding.under_share is None else f"{finding.under_share:.1%} of decode time under it"
    )


def _open_above(findings: Sequence[FloorFinding], floor_tps: float) -> tuple[float, ...]:
    return tuple(each.floor_tps for each in findings if each.standing == "undecided" and each.floor_tps > floor_tps)


def _why_none(plan: SweepPlan, findings: Sequence[FloorFinding]) -> str:
    floors = [each for each in findings if each.floor_tps != NO_FLOOR]
    if not floors:
        return "no floor was run"
    if all(each.standing == "not whole" for each in floors):
        return "no floor delivered every package in every repeat"
    reasons = "; ".join(f"{each.floor_tps:g}: {each.standing}, {each.why}" for each in floors)
    return f"no floor is known to deliver everything, to be kept, and to be within {plan.margin:.0%}: {reasons}"


def is_clear(plan: SweepPlan, findings: Sequence[FloorFinding]) -> bool:
    """Whether more repeats would change nothing: the sweet spot and every floor above it are settled."""
    if len(findings) < len(plan.floors_tps):
        return False
    sweet = next((each for each in findings if each.standing == "sweet spot"), None)
    if sweet is None:
        return all(each.settled for each in findings)
    return sweet.settled and all(each.settled for each in findings if each.floor_tps > sweet.floor_tps)


def floors_left(plan: SweepPlan, findings: Sequence[FloorFinding]) -> tuple[float, ...]:
    """The floors that are worth another repeat; the best one stays, since the others are compared with it."""
    if not plan.stops_early:
        return plan.floors_tps
    out = ("not whole", "too slow", "floor not kept")
    by_floor = {each.floor_tps: each for each in findings}
    gone = {floor for floor, each in by_floor.items() if each.settled and each.standing in out and not _is_best(each)}
    return tuple(floor for floor in plan.floors_tps if floor not in gone)


def _is_best(finding: FloorFinding) -> bool:
    return finding.ratio is not None and finding.ratio.ratio == 1.0
