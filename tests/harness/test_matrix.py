"""Matrices on servers that play the model: order, verdicts, replays, interruption, what is refused."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

import pytest

from polystem.engine.remote import RemoteClient
from polystem.errors import ConfigError, RecordError
from polystem.harness.arm_servers import ServedArm
from polystem.harness.arms import ArmPlan
from polystem.harness.matrix import MatrixStep, check_matrix, plan_settings, run_matrix
from polystem.harness.matrix_record import Matrix, MatrixPlan, read_matrix
from polystem.harness.matrix_replays import because
from polystem.harness.settings import CourierSettings
from polystem.harness.witness import FAILING_NAME, Outcome, read_failing
from polystem.harness.world import Call, draw_packages
from tests.engine.remote.raw_server import Raw
from tests.harness.courier_server import HANGING, Body, CourierServer, refused, right_call, said, said_text
from tests.harness.hasty import HastyClock

pytestmark = pytest.mark.anyio

SETTINGS = CourierSettings(
    packages=6, steps=2, concurrency=3, prefix_tokens=1500, max_errors=1, tool_delay_s=(0, 0), turn_limit_s=30
)  # fmt: skip
PACKAGES = draw_packages(SETTINGS.seed, 6, 2)
PLAN = MatrixPlan(
    quants=("F16", "Q4"), concurrency=(1, 3), again=False, replays=32, models={"F16": "aa", "Q4": "bb"},
    settings=plan_settings(SETTINGS),
)  # fmt: skip
Chat = Callable[[Body, int], Raw]


def number_of(body: Body) -> int | None:
    """Which package asks; None for a turn that is asked alone."""
    number = str(body["session_id"]).rpartition("-")[2]
    return int(number) if number.isdecimal() else None


def right(body: Body, _number: int) -> Raw:
    return said(right_call(body["messages"]))


def wrong(_body: Body, _number: int) -> Raw:
    return said(Call("collect", {"package_id": "00000"}))


@dataclass
class Among:
    """Goes wrong in some packages where others run, and is right when it is asked alone."""

    trouble: Raw
    packages: tuple[int, ...] = (0, 1)

    def __call__(self, body: Body, number: int) -> Raw:
        return self.trouble if number_of(body) in self.packages else right(body, number)


@dataclass
class Stage:
    """The servers of every quant; counts which were started, and for what."""

    chats: dict[str, Chat]
    started: list[tuple[str, str]] = field(default_factory=lambda: [])
    served: list[CourierServer] = field(default_factory=lambda: [])

    def __call__(self, quant: str, place: Path) -> _Servers:
        return _Servers(self, quant, place)


@dataclass
class _Servers:
    stage: Stage
    quant: str
    place: Path
    kind: Literal["own", "given"] = "own"

    @asynccontextmanager
    async def serving(self, arm: ArmPlan, floor_tps: float | None) -> AsyncGenerator[ServedArm, None]:
        assert self.place.is_dir()
        self.stage.started.append((self.quant, self.place.name))
        server = CourierServer(chat=self.stage.chats.get(self.quant, right))
        self.stage.served.append(server)
        async with server.serve() as url, RemoteClient(url) as client:
            yield ServedArm(client, "none", floor_tps, arm.workers)


def made(folder: Path) -> Path:
    folder.mkdir()
    return folder


async def ran(
    stage: Stage, folder: Path, plan: MatrixPlan = PLAN, settings: CourierSettings = SETTINGS, **more: Any
) -> Matrix:
    plan = replace(plan, settings=plan_settings(settings))
    return await run_matrix(plan, settings, folder, stage, clock=HastyClock(), **more)


async def test_every_quant_runs_at_every_concurrency_and_their_order_turns_round(tmp_path: Path) -> None:
    stage, steps = Stage({}), list[MatrixStep]()
    matrix = await ran(stage, tmp_path, on_step=steps.append)
    assert [name for _, name in stage.started] == ["F16-at-1", "Q4-at-1", "Q4-at-3", "F16-at-3"]
    assert [(step.place, step.planned) for step in steps] == [(place, 4) for place in range(4)]
    assert matrix.finished
    assert read_matrix(tmp_path) == matrix
    assert {(each.word, each.lost, each.n) for each in matrix.verdicts} == {("NOT DISTINGUISHED", 0, 6)}
    assert all(each.detectable_drop is not None for each in matrix.verdicts)
    assert [(each.value, each.interval) for each in matrix.interactions] == [(0.0, None)]
    assert not matrix.replays


async def test_a_quant_that_is_wrong_everywhere_collapses_and_its_turns_say_quant(tmp_path: Path) -> None:
    stage = Stage({"Q4": wrong})
    matrix = await ran(stage, tmp_path)
    assert {each.word for each in matrix.verdicts} == {"COLLAPSED"}
    assert [each.lost for each in matrix.verdicts] == [6, 6]
    assert len(matrix.replays) == 12
    replay = matrix.replays[0]
    assert (replay.cause, replay.alone, replay.reference, replay.because) == (
        "wrong_argument", "wrong_argument", "right", "quant",
    )  # fmt: skip
    assert replay.asked == f"collect(package_id={PACKAGES[0].package_id})"
    assert "00000" in replay.came
    assert [name for _, name in stage.started[4:]] == ["replays-Q4", "replays-Q4-with-F16"]


async def test_a_turn_is_asked_again_with_the_very_messages_of_the_run(tmp_path: Path) -> None:
    stage = Stage({"Q4": Among(said_text("hm"), (2,))})
    await ran(stage, tmp_path, replace(PLAN, concurrency=(3,)))
    (failed,) = read_failing(tmp_path / "Q4-at-3")
    in_the_run = next(body for server in stage.served[:2] for body in server.chats if number_of(body) == 2
                      and body["messages"] == failed.body["messages"])  # fmt: skip
    for server in stage.served[2:]:
        (alone,) = server.chats
        assert {name: alone[name] for name in alone if name not in ("session_id", "model")} == {
            name: in_the_run[name] for name in in_the_run if name not in ("session_id", "pool_id", "model")
        }


@pytest.mark.parametrize(
    ("trouble", "cause", "why"),
    [
        (said_text("hm"), "parse", "numerics"),
        (said(Call("collect", {"package_id": "00000"})), "wrong_argument", "numerics"),
        (said(Call("collect", {"package_id": PACKAGES[3].package_id})), "cross_talk", "cross-talk"),
        (refused(504), "timeout", "starvation"),
    ],
)
async def test_what_is_right_alone_was_the_others_doing(tmp_path: Path, trouble: Raw, cause: str, why: str) -> None:
    matrix = await ran(Stage({"Q4": Among(trouble)}), tmp_path, replace(PLAN, concurrency=(3,)))
    assert {(each.cause, each.alone, each.because) for each in matrix.replays} == {(cause, "right", why)}
    assert {each.package for each in matrix.replays} == {0, 1}


async def test_a_worker_that_never_gets_an_answer_is_starved_and_the_limit_ends_it(tmp_path: Path) -> None:
    settings = replace(SETTINGS, turn_limit_s=1.0)
    matrix = await ran(Stage({"Q4": Among(HANGING, (4,))}), tmp_path, replace(PLAN, concurrency=(3,)), settings)
    (replay,) = [each for each in matrix.replays if each.package == 4]
    assert (replay.cause, replay.because) == ("timeout", "starvation")


@pytest.mark.parametrize(
    ("cause", "alone", "reference", "why"),
    [
        ("parse", "parse", "right", "quant"),
        ("parse", "wrong_tool", "parse", "model"),
        ("timeout", "timeout", "right", "quant"),
        ("engine_error", "right", "right", "starvation"),
        ("refused", "right", "parse", "starvation"),
        ("length_cap", "right", "right", "numerics"),
        ("cross_talk", "cross_talk", "right", "quant"),
    ],
)
def test_the_cause_follows_from_both_answers(cause: Outcome, alone: Outcome, reference: Outcome, why: str) -> None:
    assert because(cause, alone, reference) == why


async def test_the_interaction_is_what_concurrency_costs_the_quant_alone(tmp_path: Path) -> None:
    live: list[int] = [0]

    def crowded(body: Body, number: int) -> Raw:
        return wrong(body, number) if live[0] == 3 and number_of(body) in (0, 1, 2) else right(body, number)

    def watch(step: MatrixStep) -> None:
        live[0] = step.concurrency or 0

    def crowded_too(body: Body, number: int) -> Raw:
        return wrong(body, number) if live[0] == 3 and number_of(body) == 5 else right(body, number)

    matrix = await ran(Stage({"Q4": crowded}), made(tmp_path / "alone"), on_step=watch)
    (found,) = matrix.interactions
    assert (found.value, found.moved, found.n) == (-0.5, 3, 6)
    assert found.interval is not None
    assert found.interval[0] < -0.5 < found.interval[1] < 0
    assert found.shows
    matrix = await ran(Stage({"Q4": crowded, "F16": crowded_too}), made(tmp_path / "both"), on_step=watch)
    assert matrix.interactions[0].value == pytest.approx(-0.5 + 1 / 6)


async def test_the_reference_run_twice_is_a_row_of_its_own_and_no_member_of_the_ladder(tmp_path: Path) -> None:
    matrix = await ran(Stage({"F16 again": Among(said_text("hm"), (5,))}), tmp_path, replace(PLAN, again=True))
    again = [each for each in matrix.verdicts if each.quant == "F16 again"]
    assert [(each.lost, each.other_words, each.p_holm) for each in again] == [(1, 1, 0.5)] * 2
    assert again[0].collapse.p0 == pytest.approx(1 / 6), "what the reference loses by itself is nobody's collapse"
    assert {each.because for each in matrix.replays} == {"numerics"}


async def test_only_so_many_turns_of_a_cell_are_asked_again_and_the_rest_is_counted(tmp_path: Path) -> None:
    matrix = await ran(Stage({"Q4": wrong}), tmp_path, replace(PLAN, replays=2), replace(SETTINGS, max_errors=2))
    assert [(each.package, each.turn) for each in matrix.replays] == [(0, 0), (1, 0)] * 2
    assert matrix.not_replayed == 24 - 4


async def test_an_interrupted_matrix_goes_on_where_it_was(tmp_path: Path) -> None:
    def interrupt(step: MatrixStep) -> None:
        if step.place == 2:
            raise KeyboardInterrupt

    first, second, third = (Stage({"Q4": wrong}) for _ in range(3))
    with pytest.raises(KeyboardInterrupt):
        await ran(first, tmp_path, on_step=interrupt)
    assert not read_matrix(tmp_path).finished
    matrix = await ran(second, tmp_path)
    assert [name for _, name in second.started[:2]] == ["Q4-at-3", "F16-at-3"]
    assert await ran(third, tmp_path) == matrix
    assert third.started == [], "whole cells and replays are not made again"


async def test_a_cell_that_was_cut_short_is_run_again_and_so_are_its_replays(tmp_path: Path) -> None:
    await ran(Stage({"Q4": wrong}), tmp_path)
    (tmp_path / "Q4-at-3" / FAILING_NAME).unlink()
    again = Stage({"Q4": Among(said_text("hm"))})
    matrix = await ran(again, tmp_path)
    assert [name for _, name in again.started] == ["Q4-at-3", "replays-Q4", "replays-Q4-with-F16"]
    assert {(each.concurrency, each.because) for each in matrix.replays} == {(1, "quant"), (3, "numerics")}


async def test_quants_and_concurrencies_can_be_added(tmp_path: Path) -> None:
    await ran(Stage({}), tmp_path)
    more = Stage({})
    plan = replace(PLAN, quants=("F16", "Q4", "Q2"), concurrency=(1, 2, 3), models=PLAN.models | {"Q2": "cc"})
    matrix = await ran(more, tmp_path, plan)
    assert len(more.started) == 5
    assert len(matrix.cells) == 9


@pytest.mark.parametrize(
    ("plan", "settings", "named"),
    [
        (replace(PLAN, quants=("Q4", "F16")), SETTINGS, "reference"),
        (replace(PLAN, models={"F16": "aa", "Q4": "other"}), SETTINGS, "the file of Q4"),
        (PLAN, replace(SETTINGS, seed=1), "seed"),
    ],
)
async def test_a_folder_with_another_matrix_is_left_as_it_is(
    tmp_path: Path, plan: MatrixPlan, settings: CourierSettings, named: str
) -> None:
    await ran(Stage({}), tmp_path)
    with pytest.raises(ConfigError, match=f"holds a matrix with {named}"):
        await ran(Stage({}), tmp_path, plan, settings)


@pytest.mark.parametrize(
    ("plan", "settings", "told"),
    [
        (replace(PLAN, quants=("F16", "F16")), SETTINGS, "name each once"),
        (replace(PLAN, quants=("F16",)), SETTINGS, "nothing to hold it against"),
        (replace(PLAN, concurrency=(3, 1)), SETTINGS, "concurrency is 3, 1"),
        (replace(PLAN, concurrency=(0, 1)), SETTINGS, "concurrency is 0, 1"),
        (replace(PLAN, concurrency=(1, 7)), SETTINGS, "concurrency 7 needs as many packages"),
        (replace(PLAN, replays=-1), SETTINGS, "replays is -1"),
        (PLAN, replace(SETTINGS, mode="replay"), "in mode model without a floor"),
        (PLAN, replace(SETTINGS, floor_tps=5.0), "in mode model without a floor"),
        (PLAN, replace(SETTINGS, arms=("plain",)), "arm is 'plain'"),
    ],
)
def test_a_matrix_that_would_show_nothing_is_refused(plan: MatrixPlan, settings: CourierSettings, told: str) -> None:
    with pytest.raises(ConfigError, match=told):
        check_matrix(plan, settings)


def test_a_damaged_list_of_failing_turns_is_refused_with_its_line(tmp_path: Path) -> None:
    (tmp_path / FAILING_NAME).write_bytes(b'{"package": 1}\n')
    with pytest.raises(RecordError, match=r"failing\.jsonl:1 is damaged: it lacks asked"):
        read_failing(tmp_path)
    (tmp_path / FAILING_NAME).write_bytes(b"{\n")
    with pytest.raises(RecordError, match="not JSON"):
        read_failing(tmp_path)
