"""The report of a sweep: the sweet spot with its evidence, every floor's repeats, and one run of each in detail."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from polystem.harness.metrics import KEEPS_FLOOR, summarise
from polystem.harness.record import Record
from polystem.harness.sweep_record import NO_FLOOR, FloorFinding, Sweep, SweepRun
from polystem.report.arm_pictures import Arm, delivery_picture, front_of
from polystem.report.charts import Axis, Dot, Dots, Line, Lines, Rule
from polystem.report.html import Picture, Table
from polystem.report.markdown import markdown_of
from polystem.report.package_pictures import drops_picture, failures_table, time_line_picture
from polystem.report.page import Part, Tables, page_html
from polystem.report.rate_pictures import context_picture, step_picture, under_floor_picture
from polystem.report.verdict import Sentence, Verdict, mixed_up
from polystem.report.views import ArmView

__all__ = ["sweep_html", "sweep_markdown", "sweep_verdict"]

KICKER = "Courier sweep"


def sweep_html(sweep: Sweep, records: Mapping[float, Record]) -> str:
    """The page of a sweep. `records` has the record of one run for each floor that is to be shown in detail."""
    parts: list[Part] = [
        Tables("Floors", findings_table(sweep), "findings"),
        _wall_picture(sweep),
        _under_picture(sweep),
        _front_picture(sweep),
        Tables("All runs", _runs_table(sweep), "runs"),
        *_detail(sweep, records),
        Tables("What was run, on what", _settings_table(sweep), "settings"),
    ]
    return page_html(KICKER, sweep_verdict(sweep), parts)


def sweep_markdown(sweep: Sweep) -> str:
    """The summary of a sweep, to paste beside a model."""
    return markdown_of(KICKER, sweep_verdict(sweep), {"Floors": findings_table(sweep)})


def sweep_verdict(sweep: Sweep) -> Verdict:
    """The sweet spot or that there is none, and why."""
    spot, plan = sweep.sweet_spot, sweep.plan
    found = "No sweet spot." if spot.floor_tps is None else f"Sweet spot: {_floor_word(spot.floor_tps)}."
    open_above = ", ".join(f"{floor:g}" for floor in spot.open_above)
    sentences = (
        *mixed_up(sweep.crossed),
        *((Sentence(found),) if sweep.crossed else ()),
        *((Sentence("The sweep is not finished: this is what is known so far.", "bad"),) if not sweep.finished else ()),
        Sentence(spot.why),
        *((Sentence(f"Not decided yet, and higher: {open_above} tokens/s."),) if open_above else ()),
        *(
            (Sentence("It stopped early: more repeats would not have changed the answer."),)
            if sweep.stopped_early
            else ()
        ),
    )
    name = sweep.model.get("name") or "a model"
    what = (
        f"{name}, arm {plan.arm}: {len(sweep.runs)} runs of at most {len(plan.floors_tps) * plan.repeats}, wall time "
        f"within {plan.margin:.0%} of the best asked for; {sweep.machine.get('cpu', 'unknown processor')}, "
        f"{sweep.machine.get('cores', '?')} cores; {sweep.started_at}."
    )
    bad = bool(sweep.crossed) or spot.floor_tps is None
    return Verdict(Sentence(sweep.crossed_head or found, "bad" if bad else "good"), sentences, what)


def _floor_word(floor_tps: float) -> str:
    return "no gate" if floor_tps == NO_FLOOR else f"floor {floor_tps:g} tokens/s"


def findings_table(sweep: Sweep) -> Table:
    """What is known of each floor."""
    head = ("floor", "standing", "whole repeats", "wall, s", "over the best", "95 % interval", "under the floor", "why")
    return Table("Floors; wall and share are medians of the repeats", head, tuple(map(_finding_row, sweep.findings)))


def _finding_row(finding: FloorFinding) -> tuple[str, ...]:
    ratio = finding.ratio
    return (
        _floor_word(finding.floor_tps),
        finding.standing,
        f"{finding.whole_repeats} of {finding.repeats}",
        _told(finding.wall_s, ".1f"),
        "-" if ratio is None else f"{ratio.ratio:.3f}",
        "-" if ratio is None or ratio.low is None or ratio.high is None else f"{ratio.low:.3f} to {ratio.high:.3f}",
        _told(finding.under_share, ".1%"),
        finding.why,
    )


def _told(value: float | None, form: str) -> str:
    return "-" if value is None else format(value, form)


def _by_floor(sweep: Sweep) -> Sequence[tuple[FloorFinding, Sequence[SweepRun]]]:
    """The floors in ascending order with their runs; no gate is not a floor and stands apart."""
    findings = sorted(sweep.findings, key=lambda finding: finding.floor_tps)
    return [
        (finding, [run for run in sweep.runs if run.floor_tps == finding.floor_tps])
        for finding in findings
        if finding.floor_tps != NO_FLOOR
    ]


def _wall_picture(sweep: Sweep) -> Picture:
    floors = _by_floor(sweep)
    walls = {finding.floor_tps: [run.wall_s for run in runs if run.wall_s is not None] for finding, runs in floors}
    medians = tuple(
        (finding.floor_tps, round(finding.wall_s, 3)) for finding, _ in floors if finding.wall_s is not None
    )
    band = tuple((floor, round(min(each), 3), round(max(each), 3)) for floor, each in walls.items() if each)
    line = Line("median wall time", medians, 0, dotted=True, band=band)
    best = next((each.wall_s for each in sweep.findings if each.floor_tps == sweep.sweet_spot.best_floor_tps), None)
    limit = (
        ()
        if best is None
        else (Rule("y", round(best * (1 + sweep.plan.margin), 3), f"best + {sweep.plan.margin:.0%}"),)
    )
    spot = sweep.sweet_spot.floor_tps
    mark = () if spot is None or spot == NO_FLOOR else (Rule("x", spot, f"floor {spot:g}"),)
    chart = Lines(Axis("floor, tokens per second"), Axis("wall time, seconds", least=None), (line,), (*limit, *mark))
    return Picture(
        "Wall time against floor",
        "The median of the repeats, with their smallest and largest as a band, and the longest wall time that the "
        "margin allows. A line upright marks the sweet spot.",
        (chart,) if medians else (),
        Table(
            "Wall time by floor, in seconds",
            ("floor", "median", "smallest", "largest", "repeats"),
            tuple(
                (
                    _floor_word(finding.floor_tps),
                    _told(finding.wall_s, ".2f"),
                    _told(min(walls[finding.floor_tps], default=None), ".2f"),
                    _told(max(walls[finding.floor_tps], default=None), ".2f"),
                    str(len(walls[finding.floor_tps])),
                )
                for finding, _ in floors
            ),
        ),
    )


def _under_picture(sweep: Sweep) -> Picture:
    floors = _by_floor(sweep)
    shares = {
        finding.floor_tps: [run.under_share for run in runs if run.under_share is not None] for finding, runs in floors
    }
    medians = tuple(
        (finding.floor_tps, round(finding.under_share, 5)) for finding, _ in floors if finding.under_share is not None
    )
    band = tuple((floor, round(min(each), 5), round(max(each), 5)) for floor, each in shares.items() if each)
    delivered = tuple(
        (finding.floor_tps, round(sum(run.delivered for run in runs) / sum(run.packages for run in runs), 5))
        for finding, runs in floors
        if runs
    )
    lines = (
        Line("share of decode time under the floor", medians, 1, dotted=True, band=band),
        Line("share of packages delivered", delivered, "good", dotted=True, dashed=True),
    )
    rows = tuple(
        (
            _floor_word(finding.floor_tps),
            _told(finding.under_share, ".2%"),
            _told(max((run.deep_share for run in runs if run.deep_share is not None), default=None), ".2%"),
            f"{sum(run.delivered for run in runs)} of {sum(run.packages for run in runs)}",
        )
        for finding, runs in floors
    )
    return Picture(
        "Kept and delivered, against floor",
        "Share of decode time under the floor (median, with the smallest and largest of the repeats as a band), and "
        "the share of packages that were delivered in all repeats together.",
        (
            Lines(
                Axis("floor, tokens per second"),
                Axis("share", most=1, percent=True),
                lines,
                (Rule("y", KEEPS_FLOOR, f"{KEEPS_FLOOR:.0%}: kept"),),
            ),
        ),
        Table("Shares by floor", ("floor", "under it, median", "under half of it, most", "delivered"), rows),
    )


def _front_picture(sweep: Sweep) -> Picture:
    placed = [
        (finding, hue)
        for hue, finding in enumerate(sweep.findings)
        if finding.wall_s is not None and finding.under_share is not None
    ]
    dots = tuple(
        Dot(
            _floor_word(finding.floor_tps),
            round(finding.wall_s or 0.0, 3),
            round(finding.under_share or 0.0, 5),
            hue,
            filled=finding.whole_repeats == finding.repeats,
        )
        for finding, hue in placed
    )
    front = front_of([(dot.x, dot.y) for dot in dots if dot.filled])
    rows = tuple(
        (dot.name, f"{dot.x:.2f}", f"{dot.y:.2%}", "yes" if dot.filled and (dot.x, dot.y) in front else "no")
        for dot in dots
    )
    return Picture(
        "The front: wall time against share under the floor",
        "Medians of the repeats; each floor is judged by itself. Lower is better on both axes, and a hollow point did "
        "not deliver everything in every repeat.",
        (
            (
                Dots(
                    Axis("wall time, seconds", least=None),
                    Axis("share of decode time under the floor", percent=True),
                    dots,
                    front,
                    (Rule("y", KEEPS_FLOOR, f"{KEEPS_FLOOR:.0%}: kept"),),
                ),
            )
            if dots
            else ()
        ),
        Table("Floors", ("floor", "wall, s", "under it", "on the front"), rows),
    )


def _runs_table(sweep: Sweep) -> Table:
    head = (
        "run", "floor", "repeat", "wall, s", "p50 delivery, s", "under the floor", "under half of it", "workers, mean",
        "tokens/s", "delivered", "lost", "cross-talk", "folder",
    )  # fmt: skip
    return Table("Every run, in the order they were made", head, tuple(map(_run_row, sweep.runs)))


def _run_row(run: SweepRun) -> tuple[str, ...]:
    return (
        str(run.place + 1),
        _floor_word(run.floor_tps),
        str(run.repeat),
        _told(run.wall_s, ".2f"),
        _told(run.p50_from_submission_s, ".2f"),
        _told(run.under_share, ".2%"),
        _told(run.deep_share, ".2%"),
        f"{run.workers_mean:.1f}",
        _told(run.aggregate_tps, ".1f"),
        f"{run.delivered} of {run.packages}",
        str(run.lost),
        str(run.crossed),
        run.folder,
    )


def _detail(sweep: Sweep, records: Mapping[float, Record]) -> Sequence[Part]:
    """Pictures of one run of each floor, and the time line of the one at the sweet spot."""
    arms = [
        Arm(ArmView(_floor_word(floor), record, arm, record.manifest.floor_tps, hue), summarise(record, arm))
        for hue, (floor, record) in enumerate(sorted(records.items()))
        for arm in record.arms()[:1]
    ]
    if not arms:
        return ()
    views = [arm.view for arm in arms]
    spot = sweep.sweet_spot.floor_tps
    chosen = [view for view in views if spot is not None and view.label == _floor_word(spot)]
    failures = failures_table(views)
    return (
        *(() if failures is None else (Tables("What went wrong", failures, "failures"),)),
        step_picture(views),
        context_picture(views),
        under_floor_picture(views),
        delivery_picture(views),
        *(time_line_picture(view, 1) for view in chosen),
        drops_picture(views),
    )


def _settings_table(sweep: Sweep) -> Table:
    plan = sweep.plan
    groups = {"model": sweep.model, "machine": sweep.machine, "settings": plan.settings}
    rows = [(f"{group}: {name}", str(value)) for group, values in groups.items() for name, value in values.items()]
    rows += [("floors", ", ".join(f"{floor:g}" for floor in plan.floors_tps)), ("repeats", str(plan.repeats))]
    rows += [("server", plan.server), ("pictures of single runs", "the first repeat of each floor")]
    return Table("What was asked", ("setting", "value"), tuple(rows))
