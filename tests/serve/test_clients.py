"""Clients that people use, against a `polystem serve` that really runs on courier-nano."""

# langchain leaves the arguments of its generic types open:
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Generator
from dataclasses import dataclass
from typing import Any

import httpx
import openai
import psutil
import pytest
from langchain_core.messages import AIMessage, AIMessageChunk
from langchain_openai import ChatOpenAI
from openai.types.chat import ChatCompletionMessageParam, ChatCompletionToolParam
from openai.types.shared_params import ResponseFormatJSONSchema
from pydantic import SecretStr

pytestmark = pytest.mark.native

KEY = "test-key"
MODEL = "courier-nano-f16"
MESSAGES: list[ChatCompletionMessageParam] = [{"role": "user", "content": "Carry package K7 to the north hub."}]
DRIVE: ChatCompletionToolParam = {
    "type": "function",
    "function": {
        "name": "drive",
        "description": "Drive to a hub.",
        "parameters": {
            "type": "object",
            "properties": {"hub": {"type": "string", "enum": ["north", "south"]}},
            "required": ["hub"],
            "additionalProperties": False,
        },
    },
}
DECISION: dict[str, Any] = {
    "type": "object",
    "properties": {"hub": {"type": "string", "enum": ["north", "south"]}, "urgent": {"type": "boolean"}},
    "required": ["hub", "urgent"],
    "additionalProperties": False,
}
DECISION_FORMAT: ResponseFormatJSONSchema = {
    "type": "json_schema",
    "json_schema": {"name": "decision", "schema": DECISION, "strict": True},
}


@dataclass(frozen=True, slots=True)
class RunningServer:
    """A server process and where it is reached."""

    process: subprocess.Popen[str]
    url: str


@pytest.fixture(scope="module")
def server() -> Generator[RunningServer, None, None]:
    flags = ["--port", "0", "--threads", "1", "--cells", "4096", "--api-key", KEY, "--model-alias", "courier"]
    command = [sys.executable, "-m", "polystem", "serve", *flags]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        try:
            ready = next(line for line in process.stderr if line.startswith("ready"))
            yield RunningServer(process, ready.split("the API is at ")[1].split("/v1")[0])
        finally:
            process.terminate()
            code = process.wait(timeout=30)
    assert code == 0


@pytest.fixture
def client(server: RunningServer) -> Generator[openai.OpenAI, None, None]:
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key=KEY, max_retries=0, timeout=50) as client:
        yield client


@pytest.fixture
def model(server: RunningServer) -> ChatOpenAI:
    return ChatOpenAI(
        base_url=f"{server.url}/v1", api_key=SecretStr(KEY), model=MODEL, temperature=0, max_retries=0, timeout=50
    )


def test_openai_lists_the_model(client: openai.OpenAI) -> None:
    assert [each.id for each in client.models.list()] == [MODEL]
    assert client.models.retrieve("courier").id == MODEL


def test_openai_reads_a_whole_answer_and_a_seeded_run_repeats_itself(client: openai.OpenAI) -> None:
    answers = [
        client.chat.completions.create(model="courier", messages=MESSAGES, max_tokens=16, seed=5, stop="\n\n")
        for _ in range(2)
    ]
    assert answers[0].choices[0].message.content == answers[1].choices[0].message.content
    usage = answers[0].usage
    assert usage is not None
    assert 0 < usage.completion_tokens <= 16
    assert usage.prompt_tokens_details is not None


def test_openai_streams_what_it_reads_whole(client: openai.OpenAI) -> None:
    whole = client.chat.completions.create(model=MODEL, messages=MESSAGES, max_tokens=24, temperature=0)
    stream = client.chat.completions.create(
        model=MODEL,
        messages=MESSAGES,
        max_completion_tokens=24,
        temperature=0,
        stream=True,
        stream_options={"include_usage": True},
    )
    chunks = list(stream)
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
    assert text == (whole.choices[0].message.content or "")
    assert chunks[-1].usage is not None
    assert whole.usage is not None
    assert chunks[-1].usage.completion_tokens == whole.usage.completion_tokens


def test_openai_gets_a_required_call_that_fits_its_schema(client: openai.OpenAI) -> None:
    answer = client.chat.completions.create(
        model=MODEL, messages=MESSAGES, tools=[DRIVE], tool_choice="required", max_tokens=200, temperature=0
    )
    assert answer.choices[0].finish_reason == "tool_calls"
    calls = answer.choices[0].message.tool_calls
    assert calls is not None
    assert calls[0].type == "function"
    assert json.loads(calls[0].function.arguments)["hub"] in ("north", "south")


def test_openai_streams_a_named_call(client: openai.OpenAI) -> None:
    with client.chat.completions.stream(
        model=MODEL,
        messages=MESSAGES,
        tools=[DRIVE],
        tool_choice={"type": "function", "function": {"name": "drive"}},
        max_tokens=200,
        temperature=0,
    ) as stream:
        answer = stream.get_final_completion()
    calls = answer.choices[0].message.tool_calls
    assert calls is not None
    assert calls[0].function.name == "drive"
    assert json.loads(calls[0].function.arguments)["hub"] in ("north", "south")


def test_openai_gets_json_that_fits_its_schema(client: openai.OpenAI) -> None:
    answer = client.chat.completions.create(
        model=MODEL,
        messages=MESSAGES,
        max_tokens=200,
        response_format=DECISION_FORMAT,
    )
    decision = json.loads(answer.choices[0].message.content or "")
    assert decision["hub"] in ("north", "south")
    assert isinstance(decision["urgent"], bool)


def test_openai_reads_logprobs_of_both_kinds(client: openai.OpenAI) -> None:
    chat = client.chat.completions.create(
        model=MODEL, messages=MESSAGES, max_tokens=4, logprobs=True, top_logprobs=3, temperature=0
    )
    assert chat.choices[0].logprobs is not None
    content = chat.choices[0].logprobs.content
    assert content is not None
    assert all(each.logprob <= 0 and len(each.top_logprobs) == 3 for each in content)
    text = client.completions.create(model=MODEL, prompt="Carry", max_tokens=4, logprobs=2, temperature=0)
    assert text.choices[0].logprobs is not None
    assert len(text.choices[0].logprobs.tokens or []) == len(text.choices[0].logprobs.token_logprobs or []) > 0


def test_openai_keeps_an_exact_length_on_a_token_prompt(client: openai.OpenAI) -> None:
    answer = client.completions.create(
        model=MODEL, prompt=[10, 11, 12, 13], max_tokens=12, extra_body={"ignore_eos": True, "return_token_ids": True}
    )
    assert answer.usage is not None
    assert (answer.usage.prompt_tokens, answer.usage.completion_tokens) == (4, 12)
    assert len(answer.choices[0].model_extra["token_ids"]) == 12  # type: ignore[index]


def test_openai_sees_cached_and_shared_tokens(server: RunningServer, client: openai.OpenAI) -> None:
    system: ChatCompletionMessageParam = {"role": "system", "content": "You carry packages between hubs. " * 8}
    with httpx.Client(base_url=server.url, headers={"authorization": f"Bearer {KEY}"}, timeout=50) as control:
        pool = control.post("/polykv/pools", json={"messages": [system]}).json()
        first = client.chat.completions.create(
            model=MODEL,
            messages=[system, *MESSAGES],
            max_tokens=4,
            extra_body={"pool_id": pool["pool_id"], "session_id": "carrier"},
        )
        attach: Any = (first.model_extra or {})["opencoti"]
        assert attach["n_pool_shared"] == attach["pool_match"] == pool["prefix_len"] > 100
        second = client.chat.completions.create(
            model=MODEL,
            messages=[system, *MESSAGES, {"role": "assistant", "content": "On my way."}, *MESSAGES],
            max_tokens=4,
            extra_body={"session_id": "carrier"},
        )
        assert second.usage is not None
        assert second.usage.prompt_tokens_details is not None
        assert (second.usage.prompt_tokens_details.cached_tokens or 0) >= pool["prefix_len"]
        assert control.post("/sessions/carrier/close").json()["found"] is True
        assert control.post(f"/polykv/pools/{pool['pool_id']}/release").json() == {"released": True}


def test_openai_raises_the_error_that_fits(server: RunningServer, client: openai.OpenAI) -> None:
    with pytest.raises(openai.BadRequestError, match="temperature") as bad:
        client.chat.completions.create(model=MODEL, messages=MESSAGES, temperature=9)
    assert bad.value.param == "temperature"
    with pytest.raises(openai.NotFoundError, match="gpt-4o"):
        client.chat.completions.create(model="gpt-4o", messages=MESSAGES)
    stranger = openai.OpenAI(base_url=f"{server.url}/v1", api_key="wrong", max_retries=0)
    with stranger, pytest.raises(openai.AuthenticationError):
        stranger.models.list()


def test_langchain_answers_and_streams(model: ChatOpenAI) -> None:
    limited = model.bind(max_tokens=8)
    answer = limited.invoke("Hello")
    assert isinstance(answer, AIMessage)
    assert answer.usage_metadata is not None
    assert answer.usage_metadata["output_tokens"] > 0
    chunks = [chunk for chunk in limited.stream("Hello") if isinstance(chunk, AIMessageChunk)]
    assert "".join(str(chunk.content) for chunk in chunks) == answer.content


def test_langchain_binds_tools_and_sends_their_results_back(model: ChatOpenAI) -> None:
    bound = model.bind_tools([dict(DRIVE)], tool_choice="any").bind(max_tokens=200)
    answer = bound.invoke("Carry package K7 to the north hub.")
    assert isinstance(answer, AIMessage)
    [call] = answer.tool_calls[:1]
    assert call["name"] == "drive"
    assert call["args"]["hub"] in ("north", "south")
    results = [{"role": "tool", "content": "You are there.", "tool_call_id": each["id"]} for each in answer.tool_calls]
    assert isinstance(model.bind(max_tokens=8).invoke([("user", "Carry it."), answer, *results]), AIMessage)


def test_langchain_gets_structured_output(model: ChatOpenAI) -> None:
    schema = {"title": "decision", "description": "Where to.", **DECISION}
    decision = model.with_structured_output(schema, method="json_schema").invoke("Which hub?")
    assert isinstance(decision, dict)
    assert decision["hub"] in ("north", "south")


def curl(*arguments: str) -> str:
    done = subprocess.run(["curl", "-sS", "-N", *arguments], capture_output=True, text=True, check=True, timeout=50)
    return done.stdout


def test_curl_reads_a_stream_to_its_end(server: RunningServer) -> None:
    body = json.dumps({"messages": MESSAGES, "stream": True, "max_tokens": 5, "ignore_eos": True})
    text = curl(
        f"{server.url}/v1/chat/completions",
        *("-H", f"Authorization: Bearer {KEY}", "-H", "Content-Type: application/json", "-d", body),
    )
    assert text.startswith("data: {")
    assert text.endswith("data: [DONE]\n\n")
    assert '"finish_reason":"length"' in text


def test_curl_without_a_key_is_told_so(server: RunningServer) -> None:
    assert json.loads(curl(f"{server.url}/v1/models"))["error"]["type"] == "authentication_error"
    assert json.loads(curl(f"{server.url}/health"))["status"] == "ok"


ODD: list[dict[str, Any]] = [
    {"seed": -1},
    {"seed": 2**63 - 1},
    {"top_p": 0, "min_p": 1, "top_k": 2**31 - 1},
    {"temperature": 1e-30, "repeat_penalty": 1e-9, "repeat_last_n": 8192},
    {"logit_bias": {str(token): -100 for token in range(512)}},
    {"stop": ["\u0000", "x" * 5000]},
    {"messages": [{"role": "tool", "content": "\u0000", "tool_call_id": "x"}]},
    {"response_format": {"type": "json_schema", "json_schema": {"name": "a", "schema": {"$ref": "#"}}}},
    {"response_format": {"type": "regex", "pattern": "(a{1,1000}){1,1000}"}},
    {"chat_template_kwargs": {"messages": [], "self": 1}},
    {"messages": [{"role": "user", "content": "x" * 100_000}]},
]


def test_no_request_however_odd_ends_the_engine(server: RunningServer) -> None:
    with httpx.Client(base_url=server.url, headers={"authorization": f"Bearer {KEY}"}, timeout=50) as client:
        boot = client.get("/props").json()["boot"]
        for fields in ODD:
            answer = client.post("/v1/chat/completions", json={"messages": MESSAGES, "max_tokens": 4} | fields)
            assert answer.status_code in (200, 400), (fields, answer.text)
        assert client.get("/props").json()["boot"] == boot


def test_a_client_that_leaves_frees_its_cells(server: RunningServer) -> None:
    body = {"messages": MESSAGES, "stream": True, "ignore_eos": True, "max_tokens": 1500}
    with httpx.Client(base_url=server.url, headers={"authorization": f"Bearer {KEY}"}, timeout=50) as client:
        with client.stream("POST", "/v1/chat/completions", json=body) as response:
            next(response.iter_lines())
            assert client.get("/kv").json()["live"] == 1
        while client.get("/kv").json()["live"]:
            pass
        assert client.get("/kv").json()["cells_used"] == 0


def test_an_engine_that_is_killed_is_503_with_a_reason_and_comes_back(server: RunningServer) -> None:
    body = {"messages": MESSAGES, "stream": True, "ignore_eos": True, "max_tokens": 1500}
    children = psutil.Process(server.process.pid).children()
    engine = max(children, key=lambda each: each.memory_info().rss)
    with httpx.Client(base_url=server.url, headers={"authorization": f"Bearer {KEY}"}, timeout=50) as client:
        with client.stream("POST", "/v1/chat/completions", json=body) as response:
            lines = response.iter_lines()
            next(lines)
            engine.kill()
            rest = "".join(lines)
        assert '"reason":"engine_died"' in rest
        assert "[DONE]" not in rest
        reasons = set[str]()
        while (health := client.get("/health")).status_code != 200:
            reasons.add(health.json()["reason"])
        assert reasons <= {"engine_restarting"}
        answer = client.post("/v1/chat/completions", json={"messages": MESSAGES, "max_tokens": 2})
        assert answer.status_code == 200
        assert client.get("/props").json()["boot"] == 2
