"""The report of a run that was repeated: what came of all repeats together, their spread, and the page of each."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from polystem.harness.comparison import Compared, Comparison
from polystem.harness.metrics import KEEPS_FLOOR
from polystem.report.charts import Axis, Chart, Forest, ForestRow, Line, Lines, Rule
from polystem.report.crossings import crossings_in, crossings_table, failed_by
from polystem.report.html import Picture, Table
from polystem.report.markdown import markdown_of
from polystem.report.package_pictures import ends_picture
from polystem.report.page import Link, Links, Part, Tables, page_html
from polystem.report.repeats import COUNTS, SPREADS, ArmRepeats, RepeatRun, Spread, arms_of, comparisons_of
from polystem.report.run_page import settings_table
from polystem.report.verdict import Sentence, Verdict, crossed_sentences, what_ran

__all__ = ["repeats_html", "repeats_markdown", "repeats_verdict"]

KICKER = "Courier report of repeats"
WALL = SPREADS[0]
DRAWN = ("wall, s", "delivery from submission, s", "aggregate rate, tokens/s", "under the floor")


def repeats_html(runs: Sequence[RepeatRun]) -> str:
    """The page of all repeats of a run, which are at least one and did the same work."""
    arms, (compared, _) = arms_of(runs), comparisons_of(runs)
    crossed = crossings_table([each for run in runs for each in crossings_in(run.record, run.name)])
    parts: list[Part] = [
        Links("The page of each repeat", tuple(Link(run.name, run.href, _of_run(run)) for run in runs)),
        *(() if crossed is None else (Tables("Cross-talk", crossed, "failures"),)),
        Tables("Figures over the repeats", figures_over_repeats(arms), "figures spread"),
        *((_against_picture(compared),) if compared else ()),
        _repeats_picture(runs, arms),
        ends_picture("arm", [(each.arm, _ends(each)) for each in arms]),
        Tables("What was run, on what", settings_table(runs[0].record.manifest), "settings"),
    ]
    return page_html(KICKER, repeats_verdict(runs), parts)


def repeats_markdown(runs: Sequence[RepeatRun]) -> str:
    """The summary of all repeats, to paste beside a model."""
    table = figures_over_repeats(arms_of(runs))
    without_meanings = Table(table.caption, table.head[:-1], tuple(row[:-1] for row in table.rows))
    tables = {"Figures over the repeats": without_meanings}
    compared, _ = comparisons_of(runs)
    if compared:
        tables["Arms against the first"] = _against_table(compared)
    return markdown_of(KICKER, repeats_verdict(runs), tables)


def repeats_verdict(runs: Sequence[RepeatRun]) -> Verdict:
    """Delivered in all repeats or not, the floor held in how many, and which arm differs in what."""
    arms, manifest = arms_of(runs), runs[0].record.manifest
    crossings = [each for run in runs for each in crossings_in(run.record, run.name)]
    stopped = [run.name for run in runs if run.record.unfinished]
    whole = not stopped and all(summary.whole for arm in arms for _, summary in arm.summaries)
    repeats = "1 repeat" if len(runs) == 1 else f"{len(runs)} repeats"
    said = f"{'Delivered' if whole else 'Not all delivered'} in {repeats}: {_counts(arms)}."
    compared, refused = comparisons_of(runs)
    sentences = (
        *crossed_sentences(crossings, manifest.packages),
        *((Sentence(f"Delivered: {_counts(arms)}."),) if crossings else ()),
        *(Sentence(f"{name} was stopped before its end: this is what it had recorded.", "bad") for name in stopped),
        *_floor_sentences(arms),
        *(Sentence(f"Wall of {arm.arm}: {WALL.told(arm)} s.") for arm in arms if arm.values(WALL.of)),
        *(Sentence(_differs(each)) for each in compared),
        *(Sentence(each) for each in refused),
    )
    head = failed_by(crossings) if crossings else said
    what = f"{len(runs)} repeats, arms in an order that turns round; the first: {what_ran(manifest)}"
    return Verdict(Sentence(head, "good" if whole else "bad"), sentences, what)


def _counts(arms: Sequence[ArmRepeats]) -> str:
    """Of each arm how many packages were delivered in all repeats, and why others were not."""
    counts: list[str] = []
    for arm in arms:
        dropped = f" (dropped: {_dropped(arm)})" if arm.dropped_by else ""
        counts.append(f"{arm.arm} {_delivered(arm)}{dropped}")
    return "; ".join(counts)


def _delivered(arm: ArmRepeats) -> str:
    return f"{arm.total(lambda s: s.delivered)} of {arm.total(lambda s: s.packages)}"


def _floor_sentences(arms: Sequence[ArmRepeats]) -> Sequence[Sentence]:
    found: list[Sentence] = []
    for arm in arms:
        shares = arm.values(lambda s: s.under_share)
        if shares:
            (floor_tps,) = {summary.floor_tps for _, summary in arm.summaries}
            held = sum(share <= KEEPS_FLOOR for share in shares)
            found.append(
                Sentence(
                    f"Floor {floor_tps:g} tokens/s, {arm.arm}: held in {held} of {len(shares)} repeats; "
                    f"{min(shares):.1%} to {max(shares):.1%} of decode time was under it ({KEEPS_FLOOR:.0%} is kept).",
                    "good" if held == len(shares) else "bad",
                )
            )
    return found or (Sentence("No floor was set: whether the agents were fast enough is not judged."),)


def _differs(found: Comparison) -> str:
    differ = [figure for figure in found.figures if figure.verdict != "NOT DISTINGUISHED"]
    told = "; ".join(f"{figure.name} {_interval(figure)}" for figure in differ)
    words = told or "no figure is distinguished"
    return f"{found.a.arm} over {found.b.arm}, repeat by repeat: {words}. Delivered: {found.delivered.verdict}."


def _interval(figure: Compared) -> str:
    low, high = figure.ratio.low, figure.ratio.high
    ends = "no interval" if low is None or high is None else f"{low:.3f} to {high:.3f}"
    return f"{figure.ratio.ratio:.3f} ({ends})"


def _of_run(run: RepeatRun) -> str:
    manifest, arms = run.record.manifest, arms_of((run,))
    counts = "; ".join(f"{arm.arm} {_delivered(arm)}" for arm in arms if arm.summaries) or "no arm was begun"
    stopped = ", stopped before its end" if run.record.unfinished else ""
    return f"{counts} delivered, arms in the order {', '.join(manifest.arms)}; {manifest.started_at}{stopped}"


def figures_over_repeats(arms: Sequence[ArmRepeats]) -> Table:
    """Counts added up over the repeats, and every other figure as its median with the smallest and largest."""
    rows = [
        ("delivered", *map(_delivered, arms), "Packages handed over with the right door code, of all repeats."),
        ("dropped", *map(_dropped, arms), "Packages given up in all repeats, by cause."),
        *((name, *(str(arm.total(of)) for arm in arms), meaning) for name, meaning, of in COUNTS),
    ]
    rows += [
        (each.name, *(each.told(arm) for arm in arms), each.meaning)
        for each in SPREADS
        if any(arm.values(each.of) for arm in arms)
    ]
    head = ("figure", *(f"{arm.arm}, {len(arm.summaries)} repeats" for arm in arms), "what it means")
    note = "A figure with a range is the median repeat (smallest to largest); counts are sums over the repeats."
    return Table("Each arm over its repeats", head, tuple(rows), note)


def _dropped(arm: ArmRepeats) -> str:
    return ", ".join(f"{cause} {count}" for cause, count in sorted(arm.dropped_by.items())) or "none"


def _against_picture(compared: Sequence[Comparison]) -> Picture:
    first = compared[0].b.arm
    charts = tuple(
        Forest(
            Axis(f"{found.a.arm} over {first}", least=None),
            tuple(
                ForestRow(
                    f"{figure.name} ({figure.better} is better)", figure.ratio.ratio, figure.ratio.low,
                    figure.ratio.high, place,
                )
                for figure in found.figures
            ),
            title=f"{found.a.arm} over {first}",
        )
        for place, found in enumerate(compared, 1)
    )  # fmt: skip
    return Picture(
        f"Arms against {first}",
        f"Each figure of an arm over the one of {first} in the same repeat: the geometric mean with Student's 95 % "
        "interval on the logarithms. Where that holds 1 the figure is not distinguished.",
        tuple(chart for chart in charts if chart.rows),
        _against_table(compared),
    )


def _against_table(compared: Sequence[Comparison]) -> Table:
    rows = tuple(
        (
            f"{found.a.arm} over {found.b.arm}: {figure.name}",
            _interval(figure),
            str(figure.ratio.pairs),
            figure.better,
            figure.verdict.replace("A ", f"{found.a.arm} "),
        )
        for found in compared
        for figure in found.figures
    )
    return Table("Ratios of arms", ("arms and figure", "ratio", "pairs", "better is", "verdict"), rows)


def _repeats_picture(runs: Sequence[RepeatRun], arms: Sequence[ArmRepeats]) -> Picture:
    """The repeats side by side, so that a drift of the machine shows."""
    drawn = [each for each in SPREADS if each.name in DRAWN and any(arm.values(each.of) for arm in arms)]
    rows = tuple(
        (
            f"{arm.arm}, {runs[repeat - 1].name}",
            *("-" if (value := each.of(summary)) is None else format(value, each.form) for each in drawn),
            f"{summary.delivered} of {summary.packages}",
            str(summary.crossed),
        )
        for arm in arms
        for repeat, summary in arm.summaries
    )
    head = ("arm and repeat", *(each.name for each in drawn), "delivered", "cross-talk")
    return Picture(
        "Repeat by repeat",
        "The same work, one run after the other. A line that climbs or falls is a machine that changed; the distance "
        "between the lines of two arms is worth what their repeats agree on.",
        tuple(_by_repeat(each, arms) for each in drawn),
        Table("Figures of every repeat", head, rows),
    )


def _by_repeat(spread: Spread, arms: Sequence[ArmRepeats]) -> Chart:
    lines = tuple(
        Line(
            arm.arm,
            tuple(
                (float(repeat), round(value, 5))
                for repeat, summary in arm.summaries
                if (value := spread.of(summary)) is not None
            ),
            hue,
            dotted=True,
        )
        for hue, arm in enumerate(arms)
    )
    share = spread.form.endswith("%")
    rules = (Rule("y", KEEPS_FLOOR, f"{KEEPS_FLOOR:.0%}: kept"),) if share else ()
    name = "share of decode time under the floor" if share else spread.name
    y = Axis(name, most=1 if share else None, percent=share)
    return Lines(Axis("repeat", least=None, whole=True), y, lines, rules, title=spread.name)


def _ends(arm: ArmRepeats) -> Counter[str]:
    delivered, packages = arm.total(lambda s: s.delivered), arm.total(lambda s: s.packages)
    missing = packages - delivered - arm.dropped_by.total()
    return arm.dropped_by + Counter({"delivered": delivered, "not ended": max(missing, 0)})
