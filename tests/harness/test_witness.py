"""What a witness keeps of a run, and how an answer is judged by the call that was due."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from polystem.engine.remote import Answer
from polystem.harness.record import Record
from polystem.harness.rows import ArmRow, Row
from polystem.harness.witness import Outcome, Witness, failed_turns, judge
from polystem.harness.world import Owners, draw_packages
from polystem.messages import ToolCall
from tests.harness.records import MANIFEST, PACKAGE, TOOL, TURN

PACKAGES = draw_packages(0, 2, 2)
MINE, OTHER = PACKAGES
ORDER = [{"role": "system", "content": "s"}, {"role": "user", "content": "o"}]


def answer(*calls: tuple[str, str], text: str = "", finish_reason: str = "stop") -> Answer:
    made = tuple(ToolCall(f"call_{place}", name, arguments) for place, (name, arguments) in enumerate(calls))
    return Answer(text, "", made, finish_reason, None, None, None, (), 0.0, 0.0, 0.0, 0.0, ())


def collect(package_id: str) -> tuple[str, str]:
    return "collect", f'{{"package_id": "{package_id}"}}'


@pytest.mark.parametrize(
    ("given", "outcome"),
    [
        (answer(collect(MINE.package_id)), "right"),
        (answer(collect(OTHER.package_id)), "cross_talk"),
        (answer(collect("nobody's")), "wrong_argument"),
        (answer(("drive", '{"hub": "Elm"}')), "wrong_tool"),
        (answer(collect(MINE.package_id), ("drive", "{}")), "wrong_tool"),
        (answer(("collect", "{broken")), "parse"),
        (answer(("collect", "[1]")), "parse"),
        (answer(text="hm"), "parse"),
        (answer(collect(MINE.package_id), finish_reason="length"), "length_cap"),
    ],
)
def test_an_answer_is_right_or_wrong_for_its_cause(given: Answer, outcome: Outcome) -> None:
    assert judge(given, MINE, 0, Owners(PACKAGES))[0] == outcome


def witnessed(given: Answer | None, **body: Any) -> Witness:
    witness = Witness()
    key = witness.sent({"messages": ORDER, "session_id": "courier-1-pooled-0", "pool_id": 3, "model": "m", **body})
    assert key == (0, 0)
    assert key is not None
    if given is not None:
        witness.answered(key, given)
    return witness


def record_of(*rows: Row) -> Record:
    return Record(MANIFEST, (ArmRow("pooled", "start", 0.0, 100, 0, 0.1), *rows))


DROPPED = replace(PACKAGE, outcome="dropped", cause="timeout", steps_taken=0, came="no whole answer within 1 s")


def test_a_turn_that_came_to_nothing_has_the_cause_of_its_package() -> None:
    (failed,) = failed_turns(witnessed(None, temperature=0), record_of(DROPPED), PACKAGES)
    assert (failed.cause, failed.step, failed.came) == ("timeout", 0, "no whole answer within 1 s")
    assert failed.asked == f"collect(package_id={MINE.package_id})"
    assert failed.body == {"messages": ORDER, "temperature": 0}, "session, pool and model are another server's"


def test_what_the_record_calls_a_wrong_argument_is_not_made_cross_talk_afterwards() -> None:
    crossed = answer(collect(OTHER.package_id))
    told = replace(TOOL, package=0, turn=0, step=0, ok=False, cause="wrong_argument")
    (failed,) = failed_turns(witnessed(crossed), record_of(TURN, told, DROPPED), PACKAGES)
    assert failed.cause == "wrong_argument"


def test_a_turn_that_took_its_step_is_not_kept_and_one_that_was_sent_again_is_kept_once() -> None:
    witness = witnessed(answer(text="cut"))
    witness.sent({"messages": ORDER, "session_id": "courier-1-pooled-0"})
    witness.answered((0, 0), answer(collect(MINE.package_id)))
    assert len(witness.turns) == 1
    assert failed_turns(witness, record_of(TURN, PACKAGE), PACKAGES) == ()


def test_requests_of_nobody_are_not_kept() -> None:
    witness = Witness()
    assert witness.sent({"messages": ORDER}) is None
    assert witness.sent({"messages": ORDER, "session_id": "alone"}) is None
    assert not witness.turns
