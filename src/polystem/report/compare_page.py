"""The report of a comparison: ratios with their intervals, the pairs behind them, and what may be said."""

from __future__ import annotations

import statistics

from polystem.harness.comparison import Compared, Comparison
from polystem.harness.counting import counted
from polystem.report.charts import Axis, Bars, Forest, ForestRow, Line, Lines, Stack
from polystem.report.differences import NEWS, delivered_sentence, difference_words, interval_words, verdict_words
from polystem.report.html import Picture, Table
from polystem.report.markdown import markdown_of
from polystem.report.page import Part, Tables, page_html
from polystem.report.verdict import Sentence, Verdict, mixed_up

__all__ = ["comparison_html", "comparison_markdown", "comparison_verdict"]

KICKER = "Courier comparison"


def comparison_html(found: Comparison) -> str:
    """The page of a comparison."""
    parts: list[Part] = [
        _ratios_picture(found),
        _delivered_picture(found),
        *(_pairs_picture(figure) for figure in found.figures if len(figure.a) > 1),
        Tables("What was compared", _sides_table(found), "settings"),
    ]
    return page_html(KICKER, comparison_verdict(found), parts)


def comparison_markdown(found: Comparison) -> str:
    """The summary of a comparison."""
    return markdown_of(KICKER, comparison_verdict(found), {"Figures": _figures_table(found)})


def comparison_verdict(found: Comparison) -> Verdict:
    """What differs, and which way that is; cross-talk goes before all of it."""
    differ = [figure for figure in found.figures if figure.judged != "NOT DISTINGUISHED"]
    counts = f"{len(differ)} of {len(found.figures)} figures differ" if differ else "no figure is distinguished"
    head = f"A {found.a.name} against B {found.b.name}: {counts}."
    delivered = delivered_sentence(found, "A", "B")
    sentences = (
        *mixed_up(found.crossed),
        *((Sentence(head),) if found.crossed else ()),
        delivered,
        *(Sentence(f"{each.name}: A over B {difference_words(each)}.", NEWS[each.judged]) for each in differ),
        *(Sentence(f"Differs, as allowed: {name}.") for name in found.allowed),
        *(Sentence(f"Note: {caution}.") for caution in found.cautions),
    )
    what = (
        f"A: arm {found.a.arm}, {counted(found.a.runs, 'run')}; B: arm {found.b.arm}, "
        f"{counted(found.b.runs, 'run')}; pairs are {found.paired_by}s. Ratios are A over B, geometric means with "
        "Student's 95 % interval on the logarithms."
    )
    return Verdict(Sentence(found.crossed_head or head, "bad" if found.crossed else delivered.news), sentences, what)


def _ratios_picture(found: Comparison) -> Picture:
    rows = tuple(
        ForestRow(f"{figure.name} ({figure.better} is better)", figure.ratio.ratio, figure.ratio.low, figure.ratio.high)
        for figure in found.figures
    )
    return Picture(
        "Ratios A over B",
        "One point for each figure, with its 95 % interval. Where that holds 1 the figure is not distinguished.",
        (Forest(Axis("A over B", least=None), rows),) if rows else (),
        _figures_table(found),
    )


def _figures_table(found: Comparison) -> Table:
    rows = tuple(
        (
            f"{figure.name}, {figure.unit}",
            f"{statistics.median(figure.a):.5g}",
            f"{statistics.median(figure.b):.5g}",
            f"{figure.ratio.ratio:.3f}",
            interval_words(figure),
            str(figure.ratio.pairs),
            figure.better,
            verdict_words(figure, "A"),
        )
        for figure in found.figures
    )
    head = ("figure", "A, median", "B, median", "A over B", "95 % interval", "pairs", "better is", "verdict")
    return Table("Figures on both sides", head, rows)


def _delivered_picture(found: Comparison) -> Picture:
    pairs = found.delivered
    ends = (
        ("both", pairs.both, "good"),
        ("only A", pairs.won, 0),
        ("only B", pairs.lost, 1),
        ("neither", pairs.neither, "bad"),
    )
    stacks = tuple(Stack(name, (count,), hue) for name, count, hue in ends)
    rows = (*((name, str(count)) for name, count, _ in ends), ("p, exact McNemar", f"{pairs.p_value:.3g}"))
    return Picture(
        "Packages by what became of them",
        "Pairs of the same package on both sides, by who delivered it.",
        (Bars(Axis("pairs of packages", whole=True), ("pairs",), stacks, stacked=True),),
        Table("Delivered by", ("by", "pairs"), rows),
    )


def _pairs_picture(figure: Compared) -> Picture:
    """Both sides' values, each in ascending order, and pair by pair in the table.

    Repeats are numbered as their folders are.
    """
    pair, first = ("repeat", 0) if figure.paired_by == "repeat" else ("pair", 1)
    sides = (("A", figure.a, 0), ("B", figure.b, 1))
    lines = tuple(Line(name, _ascending(values), hue, dotted=len(values) <= 40) for name, values, hue in sides)
    rows = tuple(
        (f"{pair} {place}", f"{ours:.5g}", f"{theirs:.5g}", f"{ours / theirs:.3f}")
        for place, (ours, theirs) in enumerate(zip(figure.a, figure.b, strict=True), first)
    )
    return Picture(
        f"Pairs: {figure.name}",
        f"Values of A and of B, each in ascending order, so that A is everywhere below B where it is smaller; pairs "
        f"are {figure.paired_by}s.",
        (
            Lines(
                Axis(f"percent of the {figure.paired_by}s", most=100),
                Axis(f"{figure.name}, {figure.unit}", least=None),
                lines,
            ),
        ),
        Table(f"{figure.name} by {figure.paired_by}, in {figure.unit}", (pair, "A", "B", "A over B"), rows),
    )


def _ascending(values: tuple[float, ...]) -> tuple[tuple[float, float], ...]:
    ordered = sorted(values)
    last = max(1, len(ordered) - 1)
    return tuple((round(100 * place / last, 3), value) for place, value in enumerate(ordered))


def _sides_table(found: Comparison) -> Table:
    rows = tuple(
        (
            letter,
            f"{side.name}, arm {side.arm}, {counted(side.runs, 'run')}, {side.delivered} of {side.packages} delivered",
        )
        for letter, side in (("A", found.a), ("B", found.b))
    )
    return Table("Sides", ("side", "what"), rows)
