"""Charts: ticks on round numbers, points inside the axes, and a picture that any viewer takes."""

from __future__ import annotations

from xml.etree import ElementTree

import pytest
from hypothesis import given
from hypothesis import strategies as st

from polystem.cli.chart import HEIGHT, WIDTH, Axis, Chart, Line, chart_svg, round_ticks

SVG = "{http://www.w3.org/2000/svg}"


def drawn(chart: Chart) -> ElementTree.Element:
    return ElementTree.fromstring(chart_svg(chart))


def texts(picture: ElementTree.Element) -> list[str | None]:
    return [each.text for each in picture.iter(f"{SVG}text")]


def small(*lines: Line, title: str = "Workers", marks: tuple[tuple[float, float, str], ...] = ()) -> Chart:
    return Chart(title, "a shape", Axis("floor, tokens/s", 20.0), Axis("workers", 9, whole=True), lines, marks)


@pytest.mark.parametrize(
    ("most", "ticks"),
    [
        (9.0, (0, 2, 4, 6, 8, 10)),
        (20.0, (0, 5, 10, 15, 20)),
        (0.03, (0, 0.005, 0.01, 0.015, 0.02, 0.025, 0.03)),
        (0.0, (0, 1)),
        (float("nan"), (0, 1)),
    ],
)
def test_ticks_are_round_numbers(most: float, ticks: tuple[float, ...]) -> None:
    assert round_ticks(most) == pytest.approx(ticks)


def test_ticks_of_whole_things_are_whole() -> None:
    assert round_ticks(2, whole=True) == (0, 1, 2)
    assert all(tick == int(tick) for most in range(1, 40) for tick in round_ticks(most, whole=True))


@given(st.floats(1e-3, 1e6), st.booleans())
def test_ticks_reach_the_largest_value_and_are_few(most: float, whole: bool) -> None:
    ticks = round_ticks(most, whole=whole)
    assert ticks[-1] >= most * (1 - 1e-6)
    assert 2 <= len(ticks) <= 8


def test_the_picture_has_axes_with_units_and_a_legend() -> None:
    told = texts(drawn(small(Line("all workers", ((5, 9), (20, 1))), Line("decoding", ((5, 4), (20, 1)), dashed=True))))
    assert {"Workers", "a shape", "floor, tokens/s", "workers", "all workers", "decoding"} <= set(told)
    assert {"0", "5", "10", "15", "20"} <= set(told)


def test_every_point_lies_inside_the_picture() -> None:
    picture = drawn(small(Line("a", ((0, 0), (5, 9), (20, 1)))))
    [line] = picture.iter(f"{SVG}polyline")
    points = [tuple(map(float, pair.split(","))) for pair in line.attrib["points"].split()]
    assert len(points) == 3
    assert all(0 <= x <= WIDTH and 0 <= y <= HEIGHT for x, y in points)
    assert points[1][1] < points[2][1], "more workers are further up"


def test_what_users_type_cannot_break_the_picture() -> None:
    chart = small(Line("<a> & 'b'", ((5, 9),)), title="<script>'\"", marks=((19.0, 1, "<b>"),))
    assert {"<script>'\"", "<a> & 'b'", "<b>"} <= set(texts(drawn(chart)))
