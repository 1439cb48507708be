"""The figures of an arm, each once, for whoever tells them."""

from __future__ import annotations

from polystem.harness.figures import figures_of
from polystem.harness.measures import COUNTS, MEASURES
from polystem.harness.metrics import summarise_all
from tests.harness.records import RECORD


def test_every_measure_and_every_count_is_named_once() -> None:
    names = [each.name for each in (*MEASURES, *COUNTS)]
    assert len(set(names)) == len(names)


def test_the_table_of_a_run_says_of_a_count_what_the_repeats_say() -> None:
    (summary,) = summaries = summarise_all(RECORD)
    told = {figure.name: figure for figure in figures_of(summaries)}
    for count in COUNTS:
        assert told[count.name].texts == (str(count.of(summary)),)
        assert told[count.name].meaning == count.meaning


def test_the_table_of_a_run_says_what_a_measure_is() -> None:
    told = {figure.name: figure.texts[0] for figure in figures_of(summarise_all(RECORD))}
    assert told["wall"] == "8.5 s"
    assert told["strict rate"].endswith(" tokens/s")
    assert told["reduction over time"] == "1.67x"
