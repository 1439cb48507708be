"""The parser of answers: every family's calls, thinking, and text that only looks like a call."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from polystem.engine.tools import TOOL_FORMATS, open_parser, syntax_of
from polystem.errors import ConfigError
from polystem.messages import Delta, FinishReason, Message, Request, Tool, ToolChoice

DRIVE = Tool("drive", "Drive.", {"type": "object", "properties": {"hub": {"type": "string"}}})
WEIGH = Tool(
    "weigh",
    "Weigh.",
    {
        "type": "object",
        "properties": {
            "kg": {"type": "number"},
            "note": {"anyOf": [{"type": "string"}, {"type": "null"}]},
            "tags": {"type": "array"},
            "fragile": {"type": "boolean"},
        },
    },
)


@dataclass(frozen=True)
class Answer:
    """An answer put together again; ids are random, so they stay out."""

    text: str
    reasoning: str
    calls: tuple[tuple[str, str], ...]
    finish_reason: FinishReason | None


def request(**changes: Any) -> Request:
    return replace(Request("r", messages=(Message("user", "Go."),), tools=(DRIVE, WEIGH)), **changes)


def deltas(tool_format: str, pieces: Iterable[str], asked: Request, reason: FinishReason, prompt: str) -> list[Delta]:
    parser = open_parser(tool_format, asked, prompt_text=prompt)
    return [*map(parser.feed, pieces), parser.finish(reason)]


def put_together(parts: Sequence[Delta]) -> Answer:
    calls: list[tuple[str, str]] = []
    for call in (call for part in parts for call in part.tool_calls):
        if call.index == len(calls):
            assert call.name is not None
            assert call.id is not None
            assert call.id.startswith("call_")
            calls.append((call.name, call.arguments_json))
        else:
            assert call.index == len(calls) - 1
            assert call.name is None
            calls[-1] = (calls[-1][0], calls[-1][1] + call.arguments_json)
    return Answer(
        "".join(part.text for part in parts),
        "".join(part.reasoning for part in parts),
        tuple(calls),
        parts[-1].finish_reason,
    )


def read(
    tool_format: str,
    text: str,
    asked: Request | None = None,
    *,
    reason: FinishReason = "stop",
    prompt: str = "",
    pieces: Iterable[str] | None = None,
) -> Answer:
    return put_together(deltas(tool_format, pieces or (text,), asked or request(), reason, prompt))


ALDER = ("drive", '{"hub": "Alder"}')
WRITTEN: list[tuple[str, str]] = [
    ("hermes", '<tool_call>\n{"name": "drive", "arguments": {"hub": "Alder"}}\n</tool_call>'),
    ("hermes", '<tool_call>{"arguments": {"hub": "Alder"}, "name": "drive"}</tool_call>'),
    ("hermes", '<tool_call>\n{"name": "drive", "arguments": "{\\"hub\\": \\"Alder\\"}"}\n</tool_call>'),
    ("hermes", '<tool_call>\n{"name": "drive", "arguments": {"hub": "Alder"}\n</tool_call>'),
    ("hermes", '<tool_call>\n{"name": "drive", "arguments": {"hub": "Alder"}}'),
    ("hermes", '<tool_call>[{"name": "drive", "arguments": {"hub": "Alder"}}]</tool_call>'),
    ("qwen3-coder", "<tool_call>\n<function=drive>\n<parameter=hub>\nAlder\n</parameter>\n</function>\n</tool_call>"),
    ("qwen3-coder", "<function=drive><parameter=hub>Alder</parameter></function>"),
    ("qwen3-coder", "<tool_call>\n<function=drive>\n<parameter=hub>\nAlder\n</parameter>\n</tool_call>"),
    ("qwen3-coder", '<tool_call>\n{"name": "drive", "arguments": {"hub": "Alder"}}\n</tool_call>'),
    ("llama3", '{"name": "drive", "parameters": {"hub": "Alder"}}'),
    ("llama3", '<|python_tag|>{"type": "function", "name": "drive", "parameters": {"hub": "Alder"}}'),
    ("llama3", '{"type": "function", "function": {"name": "drive", "parameters": {"hub": "Alder"}}}'),
    ("mistral", '[TOOL_CALLS] [{"name": "drive", "arguments": {"hub": "Alder"}, "id": "abcdefghi"}]'),
    ("mistral", '[TOOL_CALLS][{"name": "drive", "arguments": {"hub": "Alder"}}]'),
    ("mistral-args", '[TOOL_CALLS]drive[ARGS]{"hub": "Alder"}'),
    ("mistral-args", '[TOOL_CALLS]drive[CALL_ID]abcdefghi[ARGS]{"hub": "Alder"}'),
    ("mistral-args", '[TOOL_CALLS]drive{"hub": "Alder"}'),
    ("gemma", '```tool_code\n{"name": "drive", "parameters": {"hub": "Alder"}}\n```'),
    ("gemma", '```json\n{"name": "drive", "arguments": {"hub": "Alder"}}\n```'),
    ("gemma", '{"function_call": {"name": "drive", "arguments": {"hub": "Alder"}}}'),
    ("gemma", '<function_call>{"name": "drive", "arguments": {"hub": "Alder"}}</function_call>'),
    ("gemma", '```tool_code\nprint(default_api.drive(hub="Alder"))\n```'),
    ("gemma", '```tool_code\n[drive(hub="Alder")]\n```'),
    ("json", '{"name": "drive", "arguments": {"hub": "Alder"}}'),
    ("json", '```json\n{"name": "drive", "parameters": {"hub": "Alder"}}\n```'),
]


@pytest.mark.parametrize(("tool_format", "text"), WRITTEN)
def test_a_call_is_found_in_every_shape_a_family_writes(tool_format: str, text: str) -> None:
    assert read(tool_format, text) == Answer("", "", (ALDER,), "tool_calls")


@pytest.mark.parametrize(("tool_format", "text"), WRITTEN)
def test_characters_one_at_a_time_give_the_same_call(tool_format: str, text: str) -> None:
    assert read(tool_format, text, pieces=list(text)) == Answer("", "", (ALDER,), "tool_calls")


@pytest.mark.parametrize("tool_format", TOOL_FORMATS)
def test_what_a_family_s_syntax_writes_is_read_back(tool_format: str) -> None:
    arguments = {"hub": 'Älder "1"\n', "kg": 2.5, "tags": ["a", None]}
    answer = read(tool_format, syntax_of(tool_format).write("drive", arguments))
    assert [(name, json.loads(text)) for name, text in answer.calls] == [("drive", arguments)]
    assert answer.text == ""


@pytest.mark.parametrize(
    ("tool_format", "text"),
    [
        (
            "hermes",
            'Two.\n<tool_call>\n{"name": "drive", "arguments": {}}\n</tool_call>\n'
            '<tool_call>\n{"name": "weigh", "arguments": {}}\n</tool_call>\n',
        ),
        (
            "qwen3-coder",
            "Two.\n<tool_call>\n<function=drive>\n</function>\n</tool_call>\n"
            "<tool_call>\n<function=weigh>\n</function>\n</tool_call>",
        ),
        (
            "llama3",
            'Two.<|python_tag|>{"name": "drive", "parameters": {}}; {"name": "weigh", "parameters": {}}',
        ),
        ("mistral", 'Two.[TOOL_CALLS] [{"name": "drive", "arguments": {}}, {"name": "weigh", "arguments": {}}]'),
        ("mistral-args", "Two.[TOOL_CALLS]drive[ARGS]{}[TOOL_CALLS]weigh[ARGS]{}"),
        ("gemma", "Two.\n```tool_code\ndrive()\nweigh()\n```"),
        ("gemma", 'Two.\n```json\n[{"name": "drive"}, {"name": "weigh", "parameters": null}]\n```'),
        ("json", 'Two.\n```json\n[{"name": "drive"}, {"name": "weigh", "arguments": {}}]\n```'),
    ],
)
def test_parallel_calls_are_numbered_and_text_before_them_stays(tool_format: str, text: str) -> None:
    assert read(tool_format, text) == Answer("Two.", "", (("drive", "{}"), ("weigh", "{}")), "tool_calls")


def test_arguments_leave_piece_by_piece() -> None:
    parser = open_parser("hermes", request())
    opened = parser.feed('<tool_call>\n{"name": "drive", "arguments": {"hu')
    assert [(call.index, call.name, call.arguments_json) for call in opened.tool_calls] == [(0, "drive", '{"hu')]
    more = parser.feed('b": "Al')
    assert [(call.index, call.id, call.name, call.arguments_json) for call in more.tool_calls] == [
        (0, None, None, 'b": "Al')
    ]


def test_string_arguments_in_tags_leave_piece_by_piece_with_escapes() -> None:
    parser = open_parser("qwen3-coder", request())
    parser.feed("<tool_call>\n<function=drive>\n<parameter=hub>\n")
    piece = parser.feed('a"b\nc\n')
    assert [call.arguments_json for call in piece.tool_calls] == ['a\\"b\\nc']
    rest = parser.feed("</parameter>\n</function>")
    assert [call.arguments_json for call in rest.tool_calls] == ['"}']


def test_arguments_in_tags_get_the_types_of_the_schema() -> None:
    values = {"kg": "2.50", "note": "12", "tags": '["a",\n 1]', "fragile": "True", "other": "word", "hub": "null"}
    tags = "".join(f"<parameter={key}>\n{value}\n</parameter>\n" for key, value in values.items())
    answer = read("qwen3-coder", f"<tool_call>\n<function=weigh>\n{tags}</function>\n</tool_call>")
    assert json.loads(answer.calls[0][1]) == {
        "kg": 2.5,
        "note": "12",
        "tags": ["a", 1],
        "fragile": True,
        "other": "word",
        "hub": None,
    }


@pytest.mark.parametrize(
    ("tool_format", "text"),
    [
        ("hermes", "<tool_call>\nnot json\n</tool_call>"),
        ("hermes", '<tool_call>\n{"name": 5, "arguments": {}}\n</tool_call>'),
        ("hermes", '<tool_call>\n{"name": "drive", "arguments": 5}\n</tool_call>'),
        ("hermes", '<tool_call>\n{"name": "\\ud800", "arguments": {}}\n</tool_call>'),
        ("hermes", '<tool_call>\n{"name": "dri\\u0000ve", "arguments": {}}\n</tool_call>'),
        ("hermes", '<tool_call>\n{"name": "drive", "arg'),
        ("hermes", "a < b, <tool, <tool_call"),
        ("hermes", '{"name": "drive", "arguments": {}}'),
        ("qwen3-coder", "<tool_call>\n<function=dri\nve>"),
        ("qwen3-coder", "<function=" + "a" * 200 + ">"),
        ("llama3", '{"name": "Bob", "parameters": {}}'),
        ("llama3", '{"answer": 1}'),
        ("llama3", 'Say {"name": "drive", "parameters": {}}'),
        ("mistral", "[TOOL_CALLS] none"),
        ("mistral", "[TOOL_CALLS] [1, 2]"),
        ("gemma", "```tool_code\nimport os\n```"),
        ("gemma", '```tool_code\ndrive("Alder")\n```'),
        ("gemma", "```tool_code\ndrive(hub=open('x'))\n```"),
        ("gemma", '```json\n{"a": 1}\n```'),
        ("json", "[1, 2, 3]"),
        ("json", '{"name": "Bob", "age": 3}'),
        ("json", '{"function": ' * 2000),
        ("json", "  [ not json \n"),
    ],
)
def test_what_is_no_call_comes_back_as_text_with_its_finish_reason(tool_format: str, text: str) -> None:
    assert read(tool_format, text) == Answer(text, "", (), "stop")
    assert read(tool_format, text, reason="length").finish_reason == "length"


def test_deeply_nested_values_raise_nothing() -> None:
    deep = "[" * 5000
    answer = read("qwen3-coder", f"<function=weigh><parameter=tags>{deep}</parameter></function>")
    assert json.loads(answer.calls[0][1]) == {"tags": deep}
    assert read("gemma", f"```tool_code\n{deep}\n```").text == f"```tool_code\n{deep}\n```"


def test_a_call_cut_off_by_its_length_leaves_with_what_it_had() -> None:
    text = '<tool_call>\n{"name": "drive", "arguments": {"hub": "Al'
    assert read("hermes", text, reason="length") == Answer("", "", (("drive", '{"hub": "Al'),), "length")


def test_broken_arguments_leave_as_the_model_wrote_them() -> None:
    text = '<tool_call>\n{"name": "drive", "arguments": {"hub": Alder}}\n</tool_call>'
    assert read("hermes", text) == Answer("", "", (("drive", '{"hub": Alder}'),), "tool_calls")


def test_an_unknown_name_between_a_family_s_own_marks_is_a_call() -> None:
    text = '<tool_call>\n{"name": "fly", "arguments": {}}\n</tool_call>'
    assert read("hermes", text).calls == (("fly", "{}"),)


@pytest.mark.parametrize(
    "asked", [request(tools=()), request(tool_choice=ToolChoice("none")), Request("r", prompt="p", tools=(DRIVE,))]
)
@pytest.mark.parametrize(("tool_format", "text"), WRITTEN)
def test_without_tools_a_call_is_text(tool_format: str, text: str, asked: Request) -> None:
    assert read(tool_format, text, asked) == Answer(text, "", (), "stop")


def test_without_parallel_calls_the_second_is_text() -> None:
    second = '<tool_call>\n{"name": "weigh", "arguments": {}}\n</tool_call>'
    first = '<tool_call>\n{"name": "drive", "arguments": {"hub": "Alder"}}\n</tool_call>\n'
    asked = request(parallel_tool_calls=False)
    assert read("hermes", first + second, asked) == Answer(second, "", (ALDER,), "tool_calls")
    assert read("hermes", first, asked) == Answer("", "", (ALDER,), "tool_calls")
    listed = '[TOOL_CALLS][{"name": "drive", "arguments": {"hub": "Alder"}}'
    assert read("mistral", f"{listed}]", asked) == Answer("", "", (ALDER,), "tool_calls")
    assert read("mistral", f'{listed}, {{"name": "weigh"}}]', asked).text == ', {"name": "weigh"}]'


def test_white_space_around_calls_goes_and_between_texts_stays() -> None:
    call = '<tool_call>{"name": "drive", "arguments": {"hub": "Alder"}}</tool_call>'
    assert read("hermes", f"\n\nOne \n two\n\n{call}\n").text == "\n\nOne \n two"
    assert read("hermes", f"\n{call}\n\nAfter. ").text == "After."
    assert read("hermes", f"Before.\n{call}\nAfter.").text == "Before.\nAfter."
    assert read("hermes", " \n plain \n ").text == " \n plain \n "


@pytest.mark.parametrize(("opening", "closing"), [("<think>", "</think>"), ("[THINK]", "[/THINK]")])
def test_thinking_is_told_apart(opening: str, closing: str) -> None:
    call = '<tool_call>\n{"name": "drive", "arguments": {"hub": "Alder"}}\n</tool_call>'
    text = f"{opening}\nWhich \n hub? {call}\n{closing}\n\nAlder it is.\n{call}"
    assert read("hermes", text) == Answer("Alder it is.", f"Which \n hub? {call}", (ALDER,), "tool_calls")


def test_thinking_opened_by_the_prompt_needs_no_mark() -> None:
    answer = read("hermes", "Hm.\n</think>\n\nYes.", prompt="<|im_start|>assistant\n<think>\n")
    assert answer == Answer("Yes.", "Hm.", (), "stop")
    assert read("hermes", "<think>Hm.</think>Yes.", prompt="...<think>").reasoning == "Hm."


def test_thinking_that_never_ends_is_reasoning() -> None:
    assert read("json", "<think>Hm. Hm.\n", reason="length") == Answer("", "Hm. Hm.", (), "length")


def test_thinking_marks_later_in_the_text_are_text() -> None:
    assert read("json", "Write <think> first.</think>").text == "Write <think> first.</think>"


def test_the_parser_says_whether_it_is_within_the_thinking() -> None:
    parser = open_parser("json", request(), prompt_text="<think>")
    assert parser.in_reasoning
    parser.feed("Hm.")
    assert parser.in_reasoning
    parser.feed("</think>")
    assert not parser.in_reasoning


def test_text_leaves_as_soon_as_it_can_be_no_mark() -> None:
    parser = open_parser("hermes", request())
    assert parser.feed("Hello").text == "Hello"
    assert parser.feed(" <tool").text == ""
    assert parser.feed("s>").text == " <tools>"


def test_an_unknown_tool_format_is_refused_by_name() -> None:
    with pytest.raises(ConfigError, match="'hermess' is no tool format; choose one of hermes"):
        open_parser("hermess", request())


FRAGMENTS = [
    "<tool_call>", "</tool_call>", "<function=", "drive>", "</function>", "<parameter=hub>", "<parameter=kg>", "\n",
    "</parameter>", '{"name": "drive", ', '"arguments": ', '"parameters": ', '{"hub": "Al\\"der"}', "{", "}", "[", "]",
    '"', ", ", ": ", "; ", "<|python_tag|>", "[TOOL_CALLS]", "drive", "[ARGS]", "[CALL_ID]", "```", "tool_code\n",
    "json\n", 'drive(hub="Älder")', "<think>", "</think>", "[THINK]", "[/THINK]", " ", "words ", "é", "<", "1", "null",
    '{"name": "drive", "arguments": {"hub": "Alder"}}', '{"function_call": ', "<function_call>", "</function_call>",
]  # fmt: skip
TEXTS = st.lists(st.sampled_from(FRAGMENTS) | st.text(max_size=3), max_size=14).map("".join)


@st.composite
def cut_texts(draw: st.DrawFn) -> tuple[str, list[str]]:
    text = draw(TEXTS)
    cuts = sorted(draw(st.sets(st.integers(0, len(text)))))
    return text, [text[start:end] for start, end in zip([0, *cuts], [*cuts, len(text)], strict=True)]


@pytest.mark.parametrize("tool_format", TOOL_FORMATS)
@settings(max_examples=80, deadline=None)
@given(cut=cut_texts(), several=st.booleans(), opened=st.booleans())
def test_where_an_answer_is_cut_makes_no_difference(
    tool_format: str, cut: tuple[str, list[str]], several: bool, opened: bool
) -> None:
    text, pieces = cut
    asked = request(parallel_tool_calls=several)
    prompt = "<think>" if opened else ""
    whole = read(tool_format, text, asked, prompt=prompt)
    assert read(tool_format, text, asked, prompt=prompt, pieces=pieces) == whole
    assert len(whole.calls) < 2 or several
    if not whole.calls and not whole.reasoning and "think" not in (text + prompt).lower():
        assert whole.text == text


@pytest.mark.parametrize("tool_format", TOOL_FORMATS)
@settings(max_examples=40, deadline=None)
@given(
    before=st.sampled_from(["", "Words first."]),
    arguments=st.dictionaries(
        st.from_regex(r"[a-z_]{1,6}", fullmatch=True), st.text(max_size=8) | st.integers(), max_size=3
    ),
    data=st.data(),
)
def test_written_calls_survive_any_cut(
    tool_format: str, before: str, arguments: dict[str, str | int], data: st.DataObject
) -> None:
    if tool_format in ("llama3", "json"):
        before = ""
    if tool_format == "qwen3-coder":
        arguments = {key: str(value).strip().replace("<", "") or "x" for key, value in arguments.items()}
    text = before + syntax_of(tool_format).write("drive", arguments)
    cuts = sorted(data.draw(st.sets(st.integers(0, len(text)), max_size=6)))
    pieces = [text[start:end] for start, end in zip([0, *cuts], [*cuts, len(text)], strict=True)]
    properties = {key: {"type": "string" if isinstance(value, str) else "integer"} for key, value in arguments.items()}
    drive = Tool("drive", "Drive.", {"type": "object", "properties": properties})
    answer = read(tool_format, text, request(tools=(drive,)), pieces=pieces)
    assert answer.text == before
    assert [(name, json.loads(written)) for name, written in answer.calls] == [("drive", arguments)]
