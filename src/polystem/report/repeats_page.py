"""The report of a run that was repeated: what came of all repeats together, their spread, and the page of each."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from polystem.harness.comparison import Comparison, Judged
from polystem.harness.counting import counted
from polystem.harness.measures import COUNTS, WALL
from polystem.harness.metrics import KEEPS_FLOOR
from polystem.report.charts import Axis, Chart, Forest, ForestRow, Line, Lines, Rule
from polystem.report.crossings import crossings_table, failed_by
from polystem.report.differences import NEWS, delivered_sentence, difference_words, interval_words, verdict_words
from polystem.report.html import Picture, Table
from polystem.report.markdown import markdown_of
from polystem.report.package_pictures import ends_picture
from polystem.report.page import Link, Links, Part, Tables, page_html
from polystem.report.repeats import SPREADS, AllRepeats, ArmRepeats, RepeatRun, Spread, all_repeats
from polystem.report.run_page import settings_table
from polystem.report.verdict import Sentence, Verdict, crossed_sentences, what_ran

__all__ = ["repeats_html", "repeats_markdown", "repeats_verdict"]

KICKER = "Courier report of repeats"
DRAWN = ("wall", "p50 of delivery from submission", "aggregate rate", "under the floor")
DIFFERENT: tuple[Judged, ...] = ("better", "worse")


def repeats_html(runs: Sequence[RepeatRun]) -> str:
    """The page of all repeats of a run, which are at least one and did the same work."""
    found = all_repeats(runs)
    crossed = crossings_table(found.crossings)
    parts: list[Part] = [
        Links("The page of each repeat", tuple(Link(run.name, run.href, _of_run(run, found.arms)) for run in runs)),
        *(() if crossed is None else (Tables("Cross-talk", crossed, "failures"),)),
        Tables("Figures over the repeats", figures_over_repeats(found.arms), "figures spread"),
        *((_against_picture(found.compared),) if found.compared else ()),
        _repeats_picture(found.arms),
        ends_picture("arm", [(each.arm, _ends(each)) for each in found.arms]),
        Tables("What was run, on what", settings_table(runs[0].record.manifest), "settings"),
    ]
    return page_html(KICKER, repeats_verdict(found), parts)


def repeats_markdown(runs: Sequence[RepeatRun]) -> str:
    """The summary of all repeats, to paste beside a model."""
    found = all_repeats(runs)
    table = figures_over_repeats(found.arms)
    without_meanings = Table(table.caption, table.head[:-1], tuple(row[:-1] for row in table.rows))
    tables = {"Figures over the repeats": without_meanings}
    if found.compared:
        tables["Arms against the first"] = _against_table(found.compared)
    return markdown_of(KICKER, repeats_verdict(found), tables)


def repeats_verdict(found: AllRepeats) -> Verdict:
    """Delivered in all repeats or not, the floor held in how many, and which arm differs in what."""
    arms, manifest, crossings = found.arms, found.runs[0].record.manifest, found.crossings
    stopped = [run.name for run in found.runs if run.record.unfinished]
    whole = not stopped and all(summary.whole for arm in arms for _, summary in arm.summaries)
    repeats = counted(len(found.runs), "repeat")
    said = f"{'Delivered' if whole else 'Not all delivered'} in {repeats}: {_counts(arms)}."
    sentences = (
        *crossed_sentences(crossings, manifest.packages),
        *((Sentence(f"Delivered: {_counts(arms)}."),) if crossings else ()),
        *(Sentence(f"{name} was stopped before its end: this is what it had recorded.", "bad") for name in stopped),
        *_floor_sentences(arms),
        *(Sentence(f"Wall of {arm.arm}: {Spread(WALL).told(arm)} s.") for arm in arms if arm.values(WALL.of)),
        *(sentence for each in found.compared for sentence in _differs(each)),
        *(Sentence(each) for each in found.refused),
    )
    head = failed_by(crossings) if crossings else said
    what = f"{repeats}, arms in an order that turns round; the first: {what_ran(manifest)}"
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
                    f"Floor {floor_tps:g} tokens/s, {arm.arm}: held in {held} of {counted(len(shares), 'repeat')}; "
                    f"{min(shares):.1%} to {max(shares):.1%} of decode time was under it ({KEEPS_FLOOR:.0%} is kept).",
                    "good" if held == len(shares) else "bad",
                )
            )
    return found or (Sentence("No floor was set: whether the agents were fast enough is not judged."),)


def _differs(found: Comparison) -> Sequence[Sentence]:
    """What is better on an arm than on the first, what is worse, and whether packages were lost."""
    pair = f"{found.a.arm} over {found.b.arm}, repeat by repeat"
    differ = [
        Sentence(f"{pair}: {'; '.join(f'{each.name} {difference_words(each)}' for each in figures)}.", NEWS[judged])
        for judged in DIFFERENT
        if (figures := [each for each in found.figures if each.judged == judged])
    ]
    none = Sentence(f"{pair}: no figure is distinguished.")
    return (*(differ or (none,)), delivered_sentence(found, found.a.arm, found.b.arm))


def _of_run(run: RepeatRun, arms: Sequence[ArmRepeats]) -> str:
    manifest = run.record.manifest
    summaries = {arm.arm: summary for arm in arms for each, summary in arm.summaries if each is run}
    begun = [summaries[arm] for arm in manifest.arms if arm in summaries]
    counts = "; ".join(f"{each.arm} {each.delivered} of {each.packages}" for each in begun) or "no arm was begun"
    stopped = ", stopped before its end" if run.record.unfinished else ""
    return f"{counts} delivered, arms in the order {', '.join(manifest.arms)}; {manifest.started_at}{stopped}"


def figures_over_repeats(arms: Sequence[ArmRepeats]) -> Table:
    """Counts added up over the repeats, and every other figure as its median with the smallest and largest."""
    rows = [
        ("delivered", *map(_delivered, arms), "Packages handed over with the right door code, of all repeats."),
        ("dropped", *map(_dropped, arms), "Packages given up in all repeats, by cause."),
        *((each.name, *(str(arm.total(each.of)) for arm in arms), each.meaning) for each in COUNTS),
    ]
    rows += [
        (each.name, *(each.told(arm) for arm in arms), each.measure.meaning)
        for each in SPREADS
        if any(arm.values(each.measure.of) for arm in arms)
    ]
    head = ("figure", *(f"{arm.arm}, {counted(len(arm.summaries), 'repeat')}" for arm in arms), "what it means")
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
            f"{figure.ratio.ratio:.3f} ({interval_words(figure)})",
            str(figure.ratio.pairs),
            figure.better,
            verdict_words(figure, found.a.arm),
        )
        for found in compared
        for figure in found.figures
    )
    return Table("Ratios of arms", ("arms and figure", "ratio", "pairs", "better is", "verdict"), rows)


def _repeats_picture(arms: Sequence[ArmRepeats]) -> Picture:
    """The repeats side by side, so that a drift of the machine shows."""
    drawn = [
        each for each in SPREADS if each.measure.name in DRAWN and any(arm.values(each.measure.of) for arm in arms)
    ]
    rows = tuple(
        (
            f"{arm.arm}, {run.name}",
            *("-" if (value := each.measure.of(summary)) is None else format(value, each.form) for each in drawn),
            f"{summary.delivered} of {summary.packages}",
            str(summary.crossed),
        )
        for arm in arms
        for run, summary in arm.summaries
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
                (float(run.number), round(value, 5))
                for run, summary in arm.summaries
                if (value := spread.measure.of(summary)) is not None
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
