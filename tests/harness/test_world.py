"""The courier world: packages drawn from a seed, and a job that takes one right call at a time."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from polystem.harness.world import HUBS, TOOLS, Call, Job, Package, draw_packages, order_text


def finish(job: Job) -> list[str]:
    texts: list[str] = []
    while (call := job.expected()) is not None:
        texts.append(job.apply(call.name, call.arguments).text)
    return texts


def advance(job: Job, name: str) -> Call:
    """Takes right calls until the next one is `name`, and gives that one."""
    while (call := job.expected()) is not None and call.name != name:
        job.apply(call.name, call.arguments)
    assert call is not None
    return call


def one_package(steps: int = 22) -> Package:
    return draw_packages(7, 1, steps)[0]


@given(seed=st.integers(0, 10**6), steps=st.integers(2, 60))
def test_the_steps_of_a_package_are_collect_drives_scans_and_deliver(seed: int, steps: int) -> None:
    names = [call.name for call in draw_packages(seed, 1, steps)[0].calls()]
    assert len(names) == steps
    assert (names[0], names[-1]) == ("collect", "deliver")
    assert names.count("drive") == -(-(steps - 2) // 2)
    assert names.count("scan") == (steps - 2) // 2


@pytest.mark.parametrize(("steps", "hops"), [(22, 10), (56, 27), (55, 27)])
def test_so_many_steps_make_so_many_hops(steps: int, hops: int) -> None:
    assert len(one_package(steps).route) == hops


def test_an_odd_number_of_steps_ends_with_a_drive_to_the_door() -> None:
    assert [call.name for call in one_package(7).calls()[-3:]] == ["scan", "drive", "deliver"]


@given(seed=st.integers(0, 10**6), few=st.integers(1, 8), more=st.integers(0, 40))
def test_a_package_does_not_depend_on_how_many_there_are(seed: int, few: int, more: int) -> None:
    assert draw_packages(seed, few + more, 9)[:few] == draw_packages(seed, few, 9)


def test_ids_and_codes_of_a_run_are_distinct() -> None:
    packages = draw_packages(3, 500, 4)
    assert len({package.package_id for package in packages}) == 500
    assert len({package.door_code for package in packages}) == 500


def test_two_seeds_draw_two_worlds() -> None:
    assert draw_packages(1, 4, 10) != draw_packages(2, 4, 10)


def test_a_route_never_stays_where_it_is() -> None:
    for package in draw_packages(5, 50, 56):
        assert all(here != there for here, there in zip(package.route, package.route[1:], strict=False))


def test_too_few_steps_are_refused() -> None:
    with pytest.raises(ValueError, match="at least 2"):
        draw_packages(1, 1, 1)


def test_more_packages_than_door_codes_are_refused() -> None:
    with pytest.raises(ValueError, match="5000 or fewer"):
        draw_packages(1, 5001, 4)


def test_the_door_code_is_told_once() -> None:
    package = draw_packages(11, 1, 56)[0]
    texts = [order_text(package), *finish(Job(package))]
    assert sum(package.door_code in text for text in texts) == 1


@given(seed=st.integers(0, 10**6), steps=st.integers(2, 60))
def test_the_right_calls_deliver(seed: int, steps: int) -> None:
    job = Job(draw_packages(seed, 1, steps)[0])
    finish(job)
    assert job.done
    assert job.taken == steps


def test_each_result_names_the_next_thing_to_do() -> None:
    package = one_package(4)
    assert finish(Job(package)) == [
        f"Collected. Next: drive to {package.route[0]}.",
        f"Arrived. Next: scan at {package.route[0]}.",
        "Scanned. Next: deliver.",
        "Delivered. Next: done.",
    ]


def test_a_wrong_tool_changes_nothing_and_says_what_to_do() -> None:
    job = Job(one_package())
    result = job.apply("deliver", {})
    assert (result.ok, result.done, result.cause) == (False, False, "wrong_tool")
    assert result.text == f"Error: not deliver now. Next: collect {job.package.package_id}."
    assert job.taken == 0


def test_an_invented_id_is_a_wrong_argument_and_the_answer_names_the_right_one() -> None:
    job = Job(one_package())
    result = job.apply("collect", {"package_id": "x"})
    assert result.cause == "wrong_argument"
    assert job.package.package_id in result.text


def test_a_missing_argument_is_a_wrong_argument() -> None:
    job = Job(one_package())
    assert job.apply("collect", {}).cause == "wrong_argument"


def test_a_wrong_hub_is_a_wrong_argument() -> None:
    job = Job(one_package())
    call = advance(job, "drive")
    elsewhere = next(hub for hub in HUBS if hub != call.arguments["hub"])
    assert job.apply("drive", {"hub": elsewhere}).text == f"Error: wrong hub. Next: drive to {call.arguments['hub']}."


@pytest.mark.parametrize("argument", ["package_id", "door_code"])
def test_a_value_of_another_package_is_cross_talk(argument: str) -> None:
    run = draw_packages(7, 8, 6)
    job = Job(run[2], run)
    call = advance(job, "deliver")
    foreign = {"package_id": run[5].package_id, "door_code": run[5].door_code}[argument]
    assert job.apply("deliver", {**call.arguments, argument: foreign}).cause == "cross_talk"


def test_a_wrong_door_code_is_not_answered_with_the_right_one() -> None:
    job = Job(one_package(6))
    call = advance(job, "deliver")
    result = job.apply("deliver", {**call.arguments, "door_code": "none"})
    assert result.cause == "wrong_argument"
    assert job.package.door_code not in result.text


def test_a_call_after_the_delivery_is_wrong() -> None:
    job = Job(one_package(2))
    finish(job)
    assert job.expected() is None
    assert job.apply("deliver", {}).cause == "wrong_tool"


def test_a_number_counts_as_its_digits() -> None:
    package = next(package for package in draw_packages(1, 50, 2) if package.package_id[0] != "0")
    assert Job(package).apply("collect", {"package_id": int(package.package_id)}).ok


def test_the_tools_are_openai_schemas_in_the_order_of_a_job() -> None:
    assert [tool["function"]["name"] for tool in TOOLS] == ["collect", "drive", "scan", "deliver"]
    assert json.loads(json.dumps(TOOLS)) == list(TOOLS)
