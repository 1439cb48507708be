"""The chat template: Hugging Face's behaviour, foreign code kept in its place, workarounds for what it cannot do."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from polystem.clock import VirtualClock
from polystem.engine.template import ChatTemplate, tool_format_of
from polystem.errors import BadRequest, ModelFileError, UnsupportedField
from polystem.messages import Message, Request, Tool, ToolCall

CHATML = (
    "{%- if tools %}{{ '<tools>' }}{%- for tool in tools %}{{ tool | tojson }}{%- endfor %}{{ '</tools>' }}{%- endif %}"
    "{%- for message in messages %}{{ '<' + message.role + '>' + message.content }}"
    "{%- for call in message.tool_calls or [] %}"
    '{{ \'<tool_call>{"name": "\' + call.function.name + \'", "arguments": \' }}{{ call.function.arguments | tojson }}'
    "{{ '}</tool_call>' }}{%- endfor %}{{ '</>\n' }}{%- endfor %}"
    "{%- if add_generation_prompt %}{{ '<assistant>' }}{%- endif %}"
)
ALTERNATING = (
    "{{ bos_token }}"
    "{% if messages[0]['role'] == 'system' %}{{ raise_exception('System role not supported') }}{% endif %}"
    "{% for message in messages %}"
    "{% if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}"
    "{{ raise_exception('Conversation roles must alternate') }}{% endif %}"
    "{{ '<start_of_turn>' + message['role'] + '\n' + message['content'] | trim + '<end_of_turn>\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<start_of_turn>model\n' }}{% endif %}"
)
DRIVE = Tool(
    "drive",
    "Drive to a hub.",
    {"type": "object", "properties": {"hub": {"type": "string"}}, "required": ["hub"]},
)
CALLED = Message("assistant", tool_calls=(ToolCall("call_1", "drive", '{"hub": "Älder", "a": 1}'),))
ANSWERED = Message("tool", "You are at Älder.", tool_call_id="call_1")


def chat(*messages: Message, tools: tuple[Tool, ...] = (), **template_args: Any) -> Request:
    return Request("r", messages=messages, tools=tools, template_args=template_args)


def test_tools_are_rendered_in_the_key_order_of_the_openai_api() -> None:
    text = ChatTemplate(CHATML).render(chat(Message("user", "Go."), tools=(DRIVE,)), generation_prompt=True)
    assert text == (
        '<tools>{"type": "function", "function": {"name": "drive", "description": "Drive to a hub.", "parameters": '
        '{"type": "object", "properties": {"hub": {"type": "string"}}, "required": ["hub"]}}}</tools>'
        "<user>Go.</>\n<assistant>"
    )


def test_strict_is_rendered_only_where_it_is_set() -> None:
    strict = Tool("drive", "Drive.", {"type": "object"}, strict=True)
    text = ChatTemplate(CHATML).render(chat(Message("user", "Go."), tools=(strict,)), generation_prompt=False)
    assert '"parameters": {"type": "object"}, "strict": true}}' in text


def test_call_arguments_reach_the_template_as_an_object_without_escapes() -> None:
    text = ChatTemplate(CHATML).render(chat(Message("user", "Go."), CALLED, ANSWERED), generation_prompt=False)
    assert '<tool_call>{"name": "drive", "arguments": {"hub": "Älder", "a": 1}}</tool_call>' in text
    assert text.endswith("<tool>You are at Älder.</>\n")


def test_arguments_that_are_no_json_reach_the_template_as_the_model_wrote_them() -> None:
    broken = Message("assistant", tool_calls=(ToolCall("call_1", "drive", '{"hub": Al'),))
    text = ChatTemplate(CHATML).render(chat(Message("user", "Go."), broken), generation_prompt=False)
    assert '"{\\"hub\\": Al"' in text


@pytest.mark.parametrize("source", [CHATML, ALTERNATING], ids=["with tools", "without"])
def test_arguments_with_half_a_surrogate_pair_give_a_text_that_can_be_sent(source: str) -> None:
    halved = Message("assistant", tool_calls=(ToolCall("call_1", "drive", '{"hub": "\\ud800"}'),))
    text = ChatTemplate(source).render(chat(Message("user", "Go."), halved), generation_prompt=False)
    assert "ud800" in text
    assert text.encode()


def test_arguments_with_escapes_that_are_whole_reach_the_template_as_an_object() -> None:
    escaped = Message("assistant", tool_calls=(ToolCall("call_1", "drive", '{"hub": "\\ud83d\\ude42"}'),))
    text = ChatTemplate(CHATML).render(chat(Message("user", "Go."), escaped), generation_prompt=False)
    assert '"arguments": {"hub": "🙂"}}' in text


@pytest.mark.parametrize("source", [CHATML, ALTERNATING], ids=["with tools", "without"])
def test_a_schema_that_is_too_deep_to_write_is_a_bad_request(source: str) -> None:
    schema: dict[str, Any] = {}
    for _ in range(100_000):  # from Python 3.13 on the encoder goes some thousands deep
        schema = {"items": schema}
    with pytest.raises(BadRequest, match="cannot render"):
        ChatTemplate(source).render(
            chat(Message("user", "Go."), tools=(Tool("t", "", schema),)), generation_prompt=True
        )


def test_one_more_turn_only_adds_text() -> None:
    template = ChatTemplate(CHATML)
    turns = (Message("system", "S"), Message("user", "Go."), CALLED, ANSWERED, Message("assistant", "Done."))
    texts = [
        template.render(chat(*turns[:length], tools=(DRIVE,)), generation_prompt=False)
        for length in range(1, len(turns) + 1)
    ]
    assert all(longer.startswith(shorter) for shorter, longer in pairwise(texts))


def test_the_template_of_courier_nano_renders_as_in_training(repository: Path) -> None:
    source = (repository / "training/courier_nano/chat_template.jinja").read_text(encoding="utf-8").rstrip("\n")
    template = ChatTemplate(source)
    request = chat(Message("system", "S"), Message("user", "Go."), CALLED, ANSWERED, tools=(DRIVE,))
    text = template.render(request, generation_prompt=True)
    assert text.startswith(
        '<|im_start|>system\nS\n\n# Tools\n<tools>\n{"type": "function", "function": {"name": "drive"'
    )
    assert text.endswith(
        '<|im_start|>assistant\n<tool_call>\n{"name": "drive", "arguments": {"hub": "Älder", "a": 1}}\n</tool_call>'
        "<|im_end|>\n<|im_start|>user\n<tool_response>\nYou are at Älder.\n</tool_response><|im_end|>\n"
        "<|im_start|>assistant\n"
    )
    assert template.tool_format == "hermes"
    assert template.habits.tools
    assert template.habits.system


def test_template_args_reach_the_template() -> None:
    template = ChatTemplate("{% if enable_thinking is defined and not enable_thinking %}short{% else %}long{% endif %}")
    assert template.render(chat(Message("user", "x")), generation_prompt=True) == "long"
    assert template.render(chat(Message("user", "x"), enable_thinking=False), generation_prompt=True) == "short"


def test_template_args_cannot_replace_the_messages() -> None:
    with pytest.raises(UnsupportedField, match=r"chat_template_kwargs\.messages"):
        ChatTemplate(CHATML).render(chat(Message("user", "x"), messages=[]), generation_prompt=True)


def test_what_the_template_raises_is_the_answer() -> None:
    template = ChatTemplate("{{ raise_exception('After the optional system message, roles must alternate') }}")
    with pytest.raises(BadRequest, match="After the optional system message, roles must alternate") as caught:
        template.render(chat(Message("user", "x")), generation_prompt=True)
    assert caught.value.param == "messages"


@pytest.mark.parametrize(
    "source",
    [
        "{{ messages[0].content + 1 }}",
        "{{ messages.append(1) }}",
        "{{ nothing.of.this }}",
        "{{ ''.__class__.__mro__ }}{{ 1/0 }}",
    ],
)
def test_a_template_that_fails_in_any_way_is_a_bad_request(source: str) -> None:
    with pytest.raises(BadRequest, match="cannot render these messages"):
        ChatTemplate(source).render(chat(Message("user", "x")), generation_prompt=True)


def test_a_template_sees_no_python_internals() -> None:
    template = ChatTemplate("{{ messages.__class__.__bases__ }}")
    with pytest.raises(BadRequest, match="unsafe"):
        template.render(chat(Message("user", "x")), generation_prompt=True)


def test_a_template_that_does_not_compile_is_a_fault_of_the_model_file() -> None:
    with pytest.raises(ModelFileError, match="does not compile"):
        ChatTemplate("{% for message in messages %}")


def test_blocks_are_trimmed_as_hugging_face_trims_them() -> None:
    source = "{% for message in messages %}\n    {% if true %}\n{{ message.content }}\n    {% endif %}\n{% endfor %}\n"
    assert ChatTemplate(source).render(chat(Message("user", "x")), generation_prompt=True) == "x\n"


def test_loop_controls_and_generation_tags_are_understood() -> None:
    source = (
        "{% for message in messages %}{% if loop.index > 1 %}{% break %}{% endif %}"
        "{% generation %}{{ message.content }}{% endgeneration %}{% endfor %}"
    )
    request = chat(Message("user", "x"), Message("assistant", "y"))
    assert ChatTemplate(source).render(request, generation_prompt=True) == "x"


def test_the_date_comes_from_the_clock() -> None:
    template = ChatTemplate("{{ strftime_now('%Y-%m') }}", clock=VirtualClock(wall_start_s=1_000_000_000.0))
    assert template.render(chat(Message("user", "x")), generation_prompt=True) == "2001-09"


def test_system_text_moves_before_the_first_user_message_where_there_is_no_system_role() -> None:
    template = ChatTemplate(ALTERNATING, bos_token="<bos>")
    text = template.render(chat(Message("system", "S"), Message("user", "U")), generation_prompt=True)
    assert text == "<bos><start_of_turn>user\nS\n\nU<end_of_turn>\n<start_of_turn>model\n"


def test_tools_are_explained_in_text_where_the_template_knows_none() -> None:
    template = ChatTemplate(ALTERNATING)
    text = template.render(chat(Message("user", "Go."), CALLED, ANSWERED, tools=(DRIVE,)), generation_prompt=True)
    assert '"name": "drive", "description": "Drive to a hub."' in text
    assert '```tool_code\n{"name": "<name>", "parameters": {"<argument>": "<value>"}}\n```' in text
    assert '```tool_code\n{"name": "drive", "parameters": {"hub": "Älder", "a": 1}}\n```' in text
    assert "<start_of_turn>user\nResult of drive:\nYou are at Älder.<end_of_turn>" in text


def test_the_explanation_uses_the_tool_format_given_by_name() -> None:
    template = ChatTemplate(ALTERNATING, tool_format="hermes")
    text = template.render(chat(Message("user", "Go."), CALLED, ANSWERED, tools=(DRIVE,)), generation_prompt=True)
    assert '<tool_call>\n{"name": "drive", "arguments": {"hub": "Älder", "a": 1}}\n</tool_call>' in text


def test_a_template_that_wants_argument_text_gets_text() -> None:
    source = (
        "{% for tool in tools or [] %}{{ tool.function.name }}{% endfor %}{% for message in messages %}"
        "{{ message.content }}{% for call in message.tool_calls or [] %}"
        "{{ '~' + call.function.arguments }}{% endfor %}{% endfor %}"
    )
    text = ChatTemplate(source).render(chat(Message("user", "Go."), CALLED), generation_prompt=True)
    assert text == 'Go.~{"hub": "Älder", "a": 1}'


def test_a_template_that_wants_null_beside_calls_gets_null() -> None:
    source = (
        "{% for tool in tools or [] %}{{ tool.function.name }}{% endfor %}{% for message in messages %}"
        "{% if message.content is none %}{{ message.tool_calls[0].function.arguments | tojson }}"
        "{% else %}{{ message.content }}{% endif %}{% endfor %}"
    )
    text = ChatTemplate(source).render(chat(Message("user", "Go."), CALLED), generation_prompt=True)
    assert text == 'Go.{"hub": "Älder", "a": 1}'


def test_call_ids_stay_as_the_client_sent_them() -> None:
    source = (
        "{% for tool in tools or [] %}{{ tool.function.name }}{% endfor %}{% for message in messages %}"
        "{{ message.content }}{% for call in message.tool_calls or [] %}{{ call.id }}"
        "{{ call.function.arguments | tojson }}{% endfor %}{{ message.tool_call_id }}{% endfor %}"
    )
    text = ChatTemplate(source).render(chat(CALLED, ANSWERED), generation_prompt=True)
    assert text == 'call_1{"hub": "Älder", "a": 1}You are at Älder.call_1'


def test_mistral_gets_call_ids_of_nine_letters_that_agree() -> None:
    source = (
        "{# [TOOL_CALLS] #}{% for tool in tools or [] %}{{ tool.function.name }}{% endfor %}"
        "{% for message in messages %}"
        "{% for call in message.tool_calls or [] %}"
        "{{ call.id + ' ' }}{{ call.function.arguments | tojson }}{% endfor %}"
        "{% if message.role == 'tool' %}{{ message.tool_call_id + message.content }}{% endif %}{% endfor %}"
    )
    text = ChatTemplate(source).render(
        chat(CALLED, Message("tool", "!", tool_call_id="call_1")), generation_prompt=True
    )
    call_id = text.split(" ")[0]
    assert len(call_id) == 9
    assert call_id.isalnum()
    assert text.endswith(f"{call_id}!")


@pytest.mark.parametrize(
    ("mark", "expected"),
    [
        ("<tool_call>\n<function=name>", "qwen3-coder"),
        ('<tool_call>\n{"name"', "hermes"),
        ("[TOOL_CALLS]", "mistral"),
        ("[TOOL_CALLS]name[ARGS]", "mistral-args"),
        ("<|start_header_id|>", "llama3"),
        ("<|python_tag|>", "llama3"),
        ("<start_of_turn>", "gemma"),
        ("<|im_start|>", "json"),
    ],
)
def test_the_tool_format_is_read_from_the_template(mark: str, expected: str) -> None:
    assert tool_format_of(f"{{{{ '{mark}' }}}}") == expected
