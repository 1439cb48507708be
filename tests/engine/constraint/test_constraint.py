"""Constraints: what a grammar lets through, byte by byte, and that what it lets through parses again."""

from __future__ import annotations

import json
import pickle
import random
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from polystem.engine.constraint import Constraint, ConstraintCompiler, grammar_for
from polystem.engine.tools import TOOL_FORMATS, open_parser
from polystem.errors import BadRequest, ConstraintError
from polystem.messages import Message, Request, ResponseFormat, Tool, ToolChoice

BYTES = [bytes([value]) for value in range(256)]
WORDS = [
    b"<tool_call>", b"</tool_call>", b'{"name": "', b'", "arguments": {"', b"drive", b"Alder", b"[TOOL_CALLS]", 
    b"[ARGS]", b"<|python_tag|>", b"```", b"\n", b' "', b'":', b"<|im_start|>", b"<|im_end|>", b"<|endoftext|>", b"",
    b"\n</parameter>\n",
]  # fmt: skip
TOKENS = BYTES + WORDS
START, END, END_OF_TEXT = (TOKENS.index(text) for text in (b"<|im_start|>", b"<|im_end|>", b"<|endoftext|>"))

DRIVE = Tool(
    "drive",
    "Drive.",
    {"type": "object", "properties": {"hub": {"type": "string", "enum": ["Alder", "Elm"]}}, "required": ["hub"]},
)
WEIGH = Tool(
    "weigh",
    "Weigh.",
    {
        "type": "object",
        "properties": {"kg": {"type": "integer"}, "note": {"type": "string"}},
        "required": ["kg"],
        "additionalProperties": False,
    },
)
REQUIRED = ToolChoice("required")
COURIER_CALL = '<tool_call>\n{"name": "drive", "arguments": {"hub": "Alder"}}\n</tool_call>'


@pytest.fixture(scope="module")
def compiler() -> ConstraintCompiler:
    return ConstraintCompiler(TOKENS, eos_tokens=[END, END_OF_TEXT], control={START, TOKENS.index(b"")})


def request(**changes: Any) -> Request:
    return replace(Request("r", messages=(Message("user", "Go."),), tools=(DRIVE, WEIGH)), **changes)


def constraint(
    compiler: ConstraintCompiler, asked: Request, tool_format: str = "hermes", *, prompt: str = ""
) -> Constraint:
    grammar = grammar_for(asked, tool_format, prompt_text=prompt)
    assert grammar is not None
    return compiler.compile(grammar)


def allowed(state: Constraint) -> set[int]:
    row = np.zeros(len(TOKENS), dtype=np.float32)
    state.mask_into(row)
    return {int(token) for token in np.flatnonzero(row == 0)}


def tokens_of(text: str) -> list[int]:
    """The longest token at each place, as a tokeniser with added tokens would have it."""
    data, tokens = text.encode(), list[int]()
    by_length = sorted((piece for piece in TOKENS if piece), key=len, reverse=True)
    while data:
        piece = next(piece for piece in by_length if data.startswith(piece))
        tokens.append(TOKENS.index(piece))
        data = data[len(piece) :]
    return tokens


def takes(state: Constraint, text: str, *, whole_tokens: bool = True) -> bool:
    """Whether the text may be written and may end there."""
    for token in tokens_of(text) if whole_tokens else list(text.encode()):
        if token not in allowed(state):
            return False
        state.accept(token)
    return state.may_end


def json_schema(schema: dict[str, Any]) -> Request:
    return request(tools=(), response_format=ResponseFormat("json_schema", json_schema=schema))


def test_a_forced_call_has_the_spacing_that_small_models_know(compiler: ConstraintCompiler) -> None:
    asked = request(tool_choice=REQUIRED)
    assert takes(constraint(compiler, asked), COURIER_CALL)
    assert takes(constraint(compiler, asked), COURIER_CALL, whole_tokens=False)
    assert not takes(constraint(compiler, asked), COURIER_CALL.replace(": ", ":"))
    assert not takes(constraint(compiler, asked), f"Well. {COURIER_CALL}")


def test_a_forced_call_begins_with_the_tag_as_one_token_or_spelled_out(compiler: ConstraintCompiler) -> None:
    state = constraint(compiler, request(tool_choice=REQUIRED))
    assert allowed(state) == {TOKENS.index(b"<tool_call>"), ord("<")}


def test_control_and_end_tokens_are_never_text(compiler: ConstraintCompiler) -> None:
    state = constraint(compiler, json_schema({"type": "string"}))
    state.accept(ord('"'))
    assert not allowed(state) & {START, END, END_OF_TEXT, TOKENS.index(b""), 0xFF}


def test_an_answer_ends_with_any_end_token_where_the_grammar_ends(compiler: ConstraintCompiler) -> None:
    state = constraint(compiler, json_schema({"const": 1}))
    assert not state.is_done
    state.accept(ord("1"))
    assert state.is_done
    assert allowed(state) == {END, END_OF_TEXT}
    state.accept(END_OF_TEXT)


def test_a_named_choice_allows_one_call_of_that_function(compiler: ConstraintCompiler) -> None:
    asked = request(tool_choice=ToolChoice("named", "drive"))
    state = constraint(compiler, asked)
    assert takes(state, COURIER_CALL)
    assert state.is_done
    assert not takes(constraint(compiler, asked), COURIER_CALL.replace("drive", "weigh"))


def test_required_allows_several_calls_unless_parallel_calls_are_off(compiler: ConstraintCompiler) -> None:
    two = f"{COURIER_CALL}\n{COURIER_CALL}"
    assert takes(constraint(compiler, request(tool_choice=REQUIRED)), two)
    assert not takes(constraint(compiler, request(tool_choice=REQUIRED, parallel_tool_calls=False)), two)


def test_arguments_follow_the_schema_and_stop_where_it_stops(compiler: ConstraintCompiler) -> None:
    asked = request(tool_choice=REQUIRED)
    assert not takes(constraint(compiler, asked), COURIER_CALL.replace("Alder", "Birch"))
    more = COURIER_CALL.replace('"Alder"', '"Alder", "x": 1')
    assert not takes(constraint(compiler, asked), more)
    open_drive = replace(DRIVE, parameters={**DRIVE.parameters, "additionalProperties": True})
    assert takes(constraint(compiler, request(tools=(open_drive,), tool_choice=REQUIRED)), more)


def test_a_choice_of_the_model_needs_no_grammar_unless_a_tool_is_strict() -> None:
    assert grammar_for(request(), "hermes") is None
    assert grammar_for(request(tool_choice=ToolChoice("none")), "hermes") is None
    assert grammar_for(request(tools=(replace(DRIVE, strict=True),)), "hermes") is not None
    assert grammar_for(Request("r", prompt="p", tools=(replace(DRIVE, strict=True),)), "hermes") is None


def test_strict_tools_leave_text_free_until_the_call_opens(compiler: ConstraintCompiler) -> None:
    asked = request(tools=(replace(DRIVE, strict=True), WEIGH))
    assert takes(constraint(compiler, asked), "Just <tool text {.")
    assert takes(constraint(compiler, asked), f"I drive.\n{COURIER_CALL}")
    assert takes(constraint(compiler, asked), f"I drive.\n{COURIER_CALL}\n{COURIER_CALL}\nThere.")
    assert not takes(constraint(compiler, asked), f"I drive.\n{COURIER_CALL.replace('Alder', 'Birch')}")
    assert not takes(constraint(compiler, asked), "I drive.\n<tool_call>\nnow")
    loose = COURIER_CALL.replace("drive", "weigh").replace('"hub"', '"anything"')
    assert takes(constraint(compiler, asked), loose)


def test_without_parallel_calls_nothing_follows_the_first(compiler: ConstraintCompiler) -> None:
    asked = request(parallel_tool_calls=False)
    assert takes(constraint(compiler, asked), f"I drive.\n{COURIER_CALL}")
    assert not takes(constraint(compiler, asked), f"{COURIER_CALL}\n{COURIER_CALL}")
    assert takes(constraint(compiler, asked), "No call.")


def test_thinking_opened_by_the_prompt_stays_free(compiler: ConstraintCompiler) -> None:
    asked = request(tool_choice=REQUIRED)
    prompt = "<|im_start|>assistant\n<think>\n"
    assert takes(constraint(compiler, asked, prompt=prompt), f"Hm {{.\n</think>\n\n{COURIER_CALL}")
    assert not takes(constraint(compiler, asked, prompt=prompt), f"{COURIER_CALL}")


def test_json_object_allows_any_object_and_nothing_else(compiler: ConstraintCompiler) -> None:
    asked = request(tools=(), response_format=ResponseFormat("json_object"))
    assert takes(constraint(compiler, asked), '{"a": [1, {"b": null}], "é": "\\n"}')
    assert not takes(constraint(compiler, asked), "[1]")
    assert not takes(constraint(compiler, asked), '{"a":1}')
    assert not takes(constraint(compiler, asked), '{"a": 1} ')


def test_json_schema_fixes_keys_order_and_types(compiler: ConstraintCompiler) -> None:
    schema = {
        "type": "object",
        "properties": {"a": {"type": "integer"}, "b": {"type": "array", "items": {"type": "string"}}},
        "required": ["a", "b"],
    }
    assert takes(constraint(compiler, json_schema(schema)), '{"a": -3, "b": ["x", "y"]}')
    assert not takes(constraint(compiler, json_schema(schema)), '{"b": [], "a": 3}')
    assert not takes(constraint(compiler, json_schema(schema)), '{"a": 3, "b": [], "c": 1}')


def test_joined_schemas_are_not_closed_against_each_other(compiler: ConstraintCompiler) -> None:
    halves = [{"type": "object", "properties": {key: {"type": "integer"}}, "required": [key]} for key in "ab"]
    assert takes(constraint(compiler, json_schema({"allOf": halves})), '{"a": 1, "b": 2}')


def test_a_regex_matches_the_whole_answer(compiler: ConstraintCompiler) -> None:
    asked = request(tools=(), response_format=ResponseFormat("regex", pattern=r"[a-c]+/\d{2}"))
    assert takes(constraint(compiler, asked), "abc/12")
    assert not takes(constraint(compiler, asked), "abc/123")


def test_with_tools_and_a_schema_the_model_calls_or_answers_by_the_schema(compiler: ConstraintCompiler) -> None:
    asked = request(response_format=ResponseFormat("json_schema", json_schema={"type": "integer"}))
    assert takes(constraint(compiler, asked), "12")
    assert takes(constraint(compiler, asked), COURIER_CALL)
    assert not takes(constraint(compiler, asked), "twelve")


@pytest.mark.parametrize(
    ("schema", "named"),
    [
        ({"type": "array", "uniqueItems": True}, "uniqueItems"),
        ({"not": {"type": "string"}}, "not"),
        ({"type": "string", "format": "colour"}, "colour"),
        ({"type": "string", "pattern": "(?=a)b"}, "look-ahead"),
        ({"type": "colour"}, "colour"),
        ({"type": "object", "properties": {"a": 5}}, "schema must be an object"),
        ({"$ref": "http://example.invalid/schema"}, "example.invalid"),
    ],
)
def test_what_a_schema_asks_in_vain_is_named(schema: dict[str, Any], named: str) -> None:
    with pytest.raises(ConstraintError, match=named) as caught:
        grammar_for(json_schema(schema), "hermes")
    assert caught.value.param == "response_format"
    tool = Tool("t", "", {"type": "object", "properties": {"a": schema}})
    with pytest.raises(ConstraintError) as caught:
        grammar_for(request(tools=(tool,), tool_choice=REQUIRED), "qwen3-coder")
    assert caught.value.param == "tools"


@pytest.mark.parametrize(
    "schema",
    [
        {"properties": 3},
        {"properties": ["a"]},
        {"properties": {"a": {"type": "string"}}, "required": 5},
        {"properties": {"a": {"enum": 5}}},
        {"properties": {"a": {"enum": "abc"}}},
    ],
)
@pytest.mark.parametrize("tool_format", ["hermes", "qwen3-coder"])
def test_a_tool_s_schema_with_a_part_of_the_wrong_kind_is_refused(schema: dict[str, Any], tool_format: str) -> None:
    tool = Tool("t", "", {"type": "object", **schema})
    with pytest.raises(ConstraintError) as caught:
        grammar_for(request(tools=(tool,), tool_choice=REQUIRED), tool_format)
    assert caught.value.param == "tools"


def test_parts_of_a_tool_s_schema_that_are_null_are_absent() -> None:
    tool = Tool("t", "", {"type": "object", "properties": None, "required": None})
    assert grammar_for(request(tools=(tool,), tool_choice=REQUIRED), "qwen3-coder")


def test_a_regex_that_is_none_is_refused() -> None:
    with pytest.raises(ConstraintError, match="unclosed character class"):
        grammar_for(request(tools=(), response_format=ResponseFormat("regex", pattern="[a")), "hermes")


def test_a_choice_that_no_tool_can_meet_is_refused() -> None:
    with pytest.raises(BadRequest, match="names the function 'fly'; the request offers drive, weigh"):
        grammar_for(request(tool_choice=ToolChoice("named", "fly")), "hermes")
    with pytest.raises(BadRequest, match="offers no tools"):
        grammar_for(request(tools=(), tool_choice=REQUIRED), "hermes")


def test_a_token_that_the_mask_forbids_is_an_error(compiler: ConstraintCompiler) -> None:
    state = constraint(compiler, json_schema({"const": 1}))
    with pytest.raises(ConstraintError):
        state.accept(ord("2"))


def test_a_grammar_travels_between_processes() -> None:
    grammar = grammar_for(request(tool_choice=REQUIRED), "hermes")
    assert pickle.loads(pickle.dumps(grammar)) == grammar


def test_two_answers_of_one_grammar_do_not_share_their_place(compiler: ConstraintCompiler) -> None:
    first = constraint(compiler, json_schema({"const": 12}))
    first.accept(ord("1"))
    second = constraint(compiler, json_schema({"const": 12}))
    assert allowed(first) == {ord("2")}
    assert allowed(second) == {ord("1")}


def test_a_row_longer_than_the_vocabulary_is_forbidden_beyond_it(compiler: ConstraintCompiler) -> None:
    row = np.zeros(len(TOKENS) + 3, dtype=np.float32)
    constraint(compiler, json_schema({"const": 1})).mask_into(row)
    assert np.isneginf(row[len(TOKENS) :]).all()


def written(state: Constraint, dice: random.Random) -> str:
    """An answer drawn at random from what the constraint allows, ending where it may."""
    data = b""
    for _ in range(600):
        if state.is_done or (state.may_end and dice.random() < 0.5):
            return data.decode()
        choice = sorted(allowed(state) - {END, END_OF_TEXT})
        calm = [token for token in choice if TOKENS[token].isalnum() or TOKENS[token] in (b'"', b"<", b"}", b"\n")]
        closing = TOKENS.index(b"\n</parameter>\n")
        token = closing if closing in choice and dice.random() < 0.2 else dice.choice(calm or choice)
        state.accept(token)
        data += TOKENS[token]
    raise AssertionError(f"no end in sight: {data!r}")


@pytest.mark.parametrize("several", [True, False])
@pytest.mark.parametrize("strict_choice", [True, False])
@pytest.mark.parametrize("tool_format", TOOL_FORMATS)
def test_whatever_a_forced_call_s_grammar_lets_through_parses_into_valid_calls(
    compiler: ConstraintCompiler, tool_format: str, several: bool, strict_choice: bool
) -> None:
    choice = REQUIRED if strict_choice else ToolChoice("named", "weigh")
    asked = request(tool_choice=choice, parallel_tool_calls=several)
    for seed in range(6):
        text = written(constraint(compiler, asked, tool_format), random.Random(seed))
        parser = open_parser(tool_format, asked)
        pieces = [parser.feed(text), parser.finish("stop")]
        calls = [call for piece in pieces for call in piece.tool_calls]
        names = [call.name for call in calls if call.name]
        assert "".join(piece.text for piece in pieces) == "", text
        assert names, text
        assert several or len(names) == 1
        for index, name in enumerate(names):
            arguments = json.loads("".join(call.arguments_json for call in calls if call.index == index))
            keys, needed = ({"hub"}, {"hub"}) if name == "drive" else ({"kg", "note"}, {"kg"})
            assert needed <= set(arguments) <= keys, text


@pytest.mark.parametrize("tool_format", ["llama3", "json", "gemma"])
@pytest.mark.parametrize("text", ['{"name": "fly", "parameters": {}}', "[1]", ' {"hub": 1}'])
def test_where_a_bracket_opens_a_call_words_do_not_begin_with_one(
    compiler: ConstraintCompiler, tool_format: str, text: str
) -> None:
    asked = request(tools=(replace(DRIVE, strict=True),))
    assert not takes(constraint(compiler, asked, tool_format), text)


@pytest.mark.parametrize("tool_format", TOOL_FORMATS)
def test_every_family_lets_strict_tools_answer_in_words_or_call(compiler: ConstraintCompiler, tool_format: str) -> None:
    asked = request(tools=(replace(DRIVE, strict=True), replace(WEIGH, strict=True)))
    forced = written(constraint(compiler, replace(asked, tool_choice=REQUIRED), tool_format), random.Random(1))
    assert takes(constraint(compiler, asked, tool_format), "No call today.")
    assert takes(constraint(compiler, asked, tool_format), forced), forced
    single = replace(asked, parallel_tool_calls=False)
    one = written(constraint(compiler, replace(single, tool_choice=REQUIRED), tool_format), random.Random(1))
    assert takes(constraint(compiler, single, tool_format), one), one
    assert grammar_for(replace(asked, tools=(DRIVE,), parallel_tool_calls=False), tool_format) is not None


DEFINED = {"$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"anyOf": [{"$ref": "#/$defs/a"}]}}}


@pytest.mark.parametrize(
    "schema",
    [
        {"$ref": "#"},
        {"allOf": [{"$ref": "#"}]},
        {"allOf": [{"$ref": "#/allOf/0"}]},
        {"$ref": "#/$defs/a", **DEFINED},
        {"type": "object", "properties": {"x": {"$ref": "#/$defs/b"}}, **DEFINED},
    ],
)
def test_a_schema_that_refers_to_itself_before_it_says_anything_is_refused_by_field_and_cause(
    schema: dict[str, Any],
) -> None:
    strict = Tool("drive", "", schema, strict=True)
    for asked, param in ((json_schema(schema), "response_format"), (request(tools=(strict,)), "tools")):
        with pytest.raises(ConstraintError, match="leads back to itself") as caught:
            grammar_for(asked, "hermes")
        assert caught.value.param == param


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "object", "properties": {"next": {"$ref": "#"}}},
        {"anyOf": [{"type": "null"}, {"$ref": "#"}]},
        {"$ref": "#/$defs/c", "$defs": {"c": {"type": "string"}}},
        {"enum": ["a", {"$ref": "#"}]},
    ],
)
def test_a_schema_that_refers_to_itself_within_what_it_says_is_a_constraint(
    compiler: ConstraintCompiler, schema: dict[str, Any]
) -> None:
    assert allowed(constraint(compiler, json_schema(schema)))
