"""ChatPolystem against polystem's own server on the scripted engine."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from typing import Annotated, Any, TypedDict

import pytest
from langchain_core.messages import AIMessage, AIMessageChunk, AnyMessage, HumanMessage, SystemMessage, ToolMessage
from langchain_core.runnables import RunnableConfig
from langchain_core.tools import tool
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import END, START, StateGraph
from langgraph.graph.message import add_messages
from openai import NotFoundError

from polystem.engine.remote import RemoteClient
from polystem.engine.scripted import Answer, ScriptedEngine, ScriptedSettings
from polystem.langgraph import ChatPolystem
from polystem.messages import ToolCall
from tests.harness.fleet_server import served

pytestmark = pytest.mark.anyio

SYSTEM = SystemMessage("You carry packages. " + "Keep them dry. " * 20)
ORDER = HumanMessage("Carry this one.")


@tool
def drive(hub: str) -> str:
    """Drive to a hub."""
    return f"Arrived at {hub}."


@pytest.fixture
def engine() -> ScriptedEngine:
    return ScriptedEngine(ScriptedSettings(cells=16384))


@pytest.fixture
async def url(engine: ScriptedEngine) -> AsyncGenerator[str, None]:
    async with served(engine) as address:
        yield address


@pytest.fixture
def model(url: str) -> ChatPolystem:
    return ChatPolystem(base_url=f"{url}/v1", temperature=0)


async def session_ids(url: str) -> list[str]:
    async with RemoteClient(url) as client:
        kv = await client.get_json("/kv")
    return [session["session_id"] for session in kv["sessions"]]


def pool_report(message: AIMessage) -> dict[str, Any]:
    return message.response_metadata["polystem"]["pool"]


def cached_tokens(message: AIMessage) -> int:
    usage = message.usage_metadata
    assert usage is not None
    return usage.get("input_token_details", {}).get("cache_read", 0)


async def test_a_pool_is_shared_by_all_that_grow_from_it(model: ChatPolystem) -> None:
    pooled = await model.awith_pool([SYSTEM], tools=[drive])
    agent = pooled.bind_tools([drive])  # pyright: ignore[reportUnknownMemberType] # bare dict
    answer = await agent.ainvoke([SYSTEM, ORDER])
    assert pooled.pool_id == 0
    assert model.pool_id is None
    report = pool_report(answer)
    assert report["pool_id"] == 0
    assert report["shared_tokens"] == report["len_tokens"] > 300
    assert not report["unknown"]
    assert cached_tokens(answer) == report["shared_tokens"]


async def test_a_stream_ends_with_usage_and_the_pool_report(model: ChatPolystem) -> None:
    pooled = await model.awith_pool([SYSTEM])
    whole: AIMessageChunk | None = None
    async for chunk in pooled.astream([SYSTEM, ORDER]):
        assert isinstance(chunk, AIMessageChunk)
        whole = chunk if whole is None else whole + chunk
    assert whole is not None
    assert whole.content
    assert whole.usage_metadata is not None
    assert whole.usage_metadata["output_tokens"] > 0
    assert pool_report(whole)["shared_tokens"] > 300
    assert whole.response_metadata["polystem"]["timings"]["decode_s"] >= 0


async def test_thinking_is_kept_apart(model: ChatPolystem, engine: ScriptedEngine) -> None:
    engine.answers.extend([Answer(text="Yes.", reasoning="Is it dry?")] * 2)
    whole = await model.ainvoke([ORDER])
    assert (whole.content, whole.additional_kwargs["reasoning_content"]) == ("Yes.", "Is it dry?")
    pieces = [chunk async for chunk in model.astream([ORDER])]
    thought = "".join(piece.additional_kwargs.get("reasoning_content", "") for piece in pieces)
    assert thought == "Is it dry?"


async def test_without_pool_or_session_nothing_is_named(model: ChatPolystem, url: str) -> None:
    answer = await model.ainvoke([ORDER])
    assert "pool" not in answer.response_metadata.get("polystem", {})
    assert await session_ids(url) == []


async def test_a_session_id_can_be_bound_and_closed(model: ChatPolystem, url: str) -> None:
    await model.bind(session_id="a/b").ainvoke([ORDER])
    assert await session_ids(url) == ["a/b"]


class State(TypedDict):
    """What the test's agent carries."""

    messages: Annotated[list[AnyMessage], add_messages]


async def test_a_langgraph_thread_is_a_session_and_its_kv_is_continued(
    model: ChatPolystem, engine: ScriptedEngine, url: str
) -> None:
    pooled = await model.awith_pool([SYSTEM], tools=[drive])
    agent = pooled.bind_tools([drive])  # pyright: ignore[reportUnknownMemberType] # bare dict

    async def think(state: State) -> dict[str, list[AnyMessage]]:
        return {"messages": [await agent.ainvoke([SYSTEM, *state["messages"]])]}

    async def act(state: State) -> dict[str, list[AnyMessage]]:
        last = state["messages"][-1]
        assert isinstance(last, AIMessage)
        results = [ToolMessage(drive.invoke(call["args"]), tool_call_id=call["id"]) for call in last.tool_calls]
        return {"messages": [*results]}

    def after(state: State) -> str:
        last = state["messages"][-1]
        return "act" if isinstance(last, AIMessage) and last.tool_calls else END

    graph = StateGraph(State)
    graph.add_node("think", think)  # pyright: ignore[reportUnknownMemberType] # untyped cache policy
    graph.add_node("act", act)  # pyright: ignore[reportUnknownMemberType] # untyped cache policy
    graph.add_edge(START, "think")
    graph.add_conditional_edges("think", after, ["act", END])
    graph.add_edge("act", "think")
    agent_graph = graph.compile(checkpointer=InMemorySaver())  # pyright: ignore[reportUnknownMemberType] # untyped cache
    engine.answers.extend(
        [Answer(tool_calls=(ToolCall("c", "drive", '{"hub": "Elm"}'),)), Answer(text="There."), Answer(text="Back.")]
    )

    async def said(text: str) -> list[AnyMessage]:
        config = {"configurable": {"thread_id": "courier-7"}}
        end: Any = await agent_graph.ainvoke({"messages": [HumanMessage(text)]}, config)  # pyright: ignore[reportUnknownMemberType,reportArgumentType] # untyped state
        return end["messages"]

    first = await said("Drive to Elm.")
    assert [message.content for message in first] == ["Drive to Elm.", "", "Arrived at Elm.", "There."]
    second = await said("Now back.")
    assert second[-1].content == "Back."
    assert await session_ids(url) == ["courier-7"]
    opening, later = first[1], second[-1]
    assert isinstance(opening, AIMessage)
    assert isinstance(later, AIMessage)
    assert opening.usage_metadata is not None
    assert cached_tokens(later) > opening.usage_metadata["input_tokens"]
    await model.aclose_session("courier-7")
    assert await session_ids(url) == []


async def test_a_model_that_is_named_must_be_the_one_served(model: ChatPolystem, url: str) -> None:
    named = ChatPolystem(base_url=f"{url}/v1", model="scripted")
    assert (await named.ainvoke([ORDER])).content
    with pytest.raises(NotFoundError, match="'other' is not served here"):
        await ChatPolystem(base_url=f"{url}/v1", model="other").ainvoke([ORDER])


async def test_a_released_pool_is_gone_and_told_so(model: ChatPolystem) -> None:
    pooled = await model.awith_pool([SYSTEM])
    await pooled.arelease_pool()
    answer = await pooled.ainvoke([SYSTEM, ORDER])
    assert pool_report(answer)["unknown"]
    assert pool_report(answer)["shared_tokens"] == 0


async def test_a_model_without_a_pool_has_none_to_release(model: ChatPolystem) -> None:
    with pytest.raises(ValueError, match="grows from no pool"):
        await model.arelease_pool()


def test_openais_own_key_and_address_are_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "not-for-you")
    monkeypatch.setenv("OPENAI_API_BASE", "https://example.org/v1")
    monkeypatch.setenv("OPENAI_BASE_URL", "https://example.org/v1")
    model = ChatPolystem()
    assert model.openai_api_base == "http://127.0.0.1:8080/v1"
    assert str(model.root_client.base_url) == "http://127.0.0.1:8080/v1/"
    assert model.root_client.api_key == "none"
    monkeypatch.setenv("POLYSTEM_API_KEY", "mine")
    assert ChatPolystem().root_client.api_key == "mine"


async def test_a_thread_named_at_the_call_is_a_session_too(model: ChatPolystem, url: str) -> None:
    config: RunnableConfig = {"configurable": {"thread_id": "direct"}}
    await model.ainvoke([ORDER], config)
    _ = [chunk async for chunk in model.astream([ORDER], config)]
    assert await session_ids(url) == ["direct"]


async def test_the_same_works_without_async(model: ChatPolystem, url: str) -> None:
    def work() -> AIMessage:
        pooled = model.with_pool([SYSTEM])
        answer = pooled.bind(session_id="sync").invoke([SYSTEM, ORDER])
        pooled.close_session("sync")
        pooled.release_pool()
        assert isinstance(answer, AIMessage)
        return answer

    assert pool_report(await asyncio.to_thread(work))["shared_tokens"] > 300
    assert await session_ids(url) == []
