"""Blocks of an answer: they open, grow and close in order, however the answer was cut."""

from __future__ import annotations

from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from polystem.messages import Delta, ToolCallDelta
from polystem.serve.anthropic.blocks import ContentBlocks, Step

CALL = ToolCallDelta(0, id="c0", name="drive", arguments_json='{"hub"')
REST = ToolCallDelta(0, arguments_json=': "north"}')


def steps_of(*deltas: Delta, shows_thinking: bool = True) -> list[Step]:
    blocks = ContentBlocks(shows_thinking=shows_thinking)
    return [step for delta in deltas for step in blocks.take(delta)] + list(blocks.end())


def content_of(steps: list[Step]) -> list[dict[str, Any]]:
    """The blocks that the steps make, each checked to open once, in order, and to be closed before the next."""
    content: list[dict[str, Any]] = []
    is_open = False
    for step in steps:
        match step.kind:
            case "start":
                assert not is_open
                assert step.index == len(content)
                content.append(dict(step.data))
            case "delta":
                assert is_open
                assert step.index == len(content) - 1
                _grow(content[-1], step.data)
            case "stop":
                assert is_open
        is_open = step.kind != "stop"
    assert not is_open
    return content


def _grow(block: dict[str, Any], data: dict[str, Any]) -> None:
    match data:
        case {"type": "text_delta", "text": text}:
            block["text"] += text
        case {"type": "thinking_delta", "thinking": text}:
            block["thinking"] += text
        case {"type": "signature_delta", "signature": text}:
            block["signature"] += text
        case {"type": "input_json_delta", "partial_json": text}:
            block["input"] = orjson.loads(text)
        case _:
            raise AssertionError(data)


def test_thinking_text_and_call_are_blocks_in_their_order() -> None:
    deltas = (Delta(reasoning="a"), Delta(reasoning="b"), Delta(text="c"), Delta(tool_calls=(CALL,)))
    thought, said, called = content_of(steps_of(*deltas, Delta(tool_calls=(REST,))))
    assert (thought["type"], thought["thinking"]) == ("thinking", "ab")
    assert len(thought["signature"]) == 64
    assert said == {"type": "text", "text": "c"}
    assert called == {"type": "tool_use", "id": "c0", "name": "drive", "input": {"hub": "north"}}


def test_of_one_delta_the_rest_of_the_open_call_comes_before_text_and_the_next_call() -> None:
    second = ToolCallDelta(1, id="c1", name="stop", arguments_json="{}")
    content = content_of(steps_of(Delta(tool_calls=(CALL,)), Delta(text="then", tool_calls=(REST, second))))
    assert [block["type"] for block in content] == ["tool_use", "text", "tool_use"]
    assert content[0]["input"] == {"hub": "north"}


@pytest.mark.parametrize("arguments", ['{"hub"', '{"hub": north}', "[]", "", '"north"'])
def test_a_call_whose_arguments_are_no_object_comes_as_text_with_all_that_was_written(arguments: str) -> None:
    call = ToolCallDelta(0, id="c0", name="drive", arguments_json=arguments)
    blocks = ContentBlocks()
    steps = [*blocks.take(Delta(text="Well. ")), *blocks.take(Delta(tool_calls=(call,))), *blocks.end()]
    assert content_of(steps) == [{"type": "text", "text": f'Well. {{"name": "drive", "arguments": {arguments}'}]
    assert blocks.tool_uses == 0


def test_thinking_that_is_not_to_be_shown_is_told_of_without_its_words() -> None:
    [thought] = content_of(steps_of(Delta(reasoning="secret"), shows_thinking=False))
    assert thought["thinking"] == ""
    assert thought["signature"]


def test_an_empty_answer_has_no_blocks() -> None:
    assert steps_of(Delta(), Delta(finish_reason="stop")) == []


PIECES = st.sampled_from(
    [
        Delta(reasoning="t"),
        Delta(text="x"),
        Delta(tool_calls=(ToolCallDelta(0, id="a", name="n", arguments_json='{"k": 1}'),)),
        Delta(tool_calls=(ToolCallDelta(1, id="b", name="n", arguments_json="{"),)),
        Delta(text="y", tool_calls=(ToolCallDelta(2, id="d", name="n", arguments_json="{}"),)),
    ]
)


@given(st.lists(PIECES, max_size=12))
def test_blocks_never_overlap_and_no_word_is_lost(deltas: list[Delta]) -> None:
    content = content_of(steps_of(*deltas))
    said = "".join(block.get("text", "") for block in content)
    assert said.count("x") == sum(delta.text == "x" for delta in deltas)
    assert said.count("y") == sum(delta.text == "y" for delta in deltas)
    whole = sum(piece.arguments_json != "{" for delta in deltas for piece in delta.tool_calls)
    assert sum(block["type"] == "tool_use" for block in content) == whole
