"""A LangChain chat model that knows sessions and pools.

Everything that `ChatOpenAI` does, and four things more: a LangGraph thread is a session, so that its KV is continued; a
prefix can be stored once and lent to all that grow from it; what the server says of pool and timings is kept in
`response_metadata["polystem"]`; thinking is kept in `additional_kwargs["reasoning_content"]`.
"""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Iterator, Sequence
from dataclasses import asdict
from typing import Any, Self, cast
from urllib.parse import quote

import openai
from langchain_core.language_models import LanguageModelInput
from langchain_core.messages import AIMessage, AIMessageChunk, BaseMessage
from langchain_core.outputs import ChatGenerationChunk, ChatResult
from langchain_core.runnables import RunnableConfig, ensure_config
from langchain_core.utils.function_calling import convert_to_openai_tool
from langchain_openai import ChatOpenAI
from pydantic import Field, SecretStr

from polystem.engine.remote.answer import attach_of, timings_of

__all__ = ["ChatPolystem"]

DEFAULT_URL = "http://127.0.0.1:8080/v1"
KEY_VARIABLE = "POLYSTEM_API_KEY"
NO_KEY = "none"
THREAD_ARGUMENT = "polystem_thread_id"


def _key_from_environment() -> SecretStr:
    """Never OpenAI's own key: it has no business on another server."""
    return SecretStr(os.environ.get(KEY_VARIABLE, NO_KEY))


class ChatPolystem(ChatOpenAI):
    """A chat model on a polystem server; by default the one on this machine, and the model that it serves.

    `pool_id` names the pool to grow from; `with_pool` makes one and gives the model bound to it. `session_id` names the
    conversation; without one, the `thread_id` of the LangGraph thread that calls is taken. Agents that run at the same
    time need threads, or session ids, of their own.
    """

    model_name: str = Field(default="", alias="model")
    openai_api_base: str | None = Field(default=DEFAULT_URL, alias="base_url")
    openai_api_key: Any = Field(default_factory=_key_from_environment, alias="api_key")
    stream_usage: bool | None = True
    use_responses_api: bool | None = False
    pool_id: int | None = None
    session_id: str | None = None

    @property
    def _llm_type(self) -> str:
        return "polystem"

    def with_pool(self, messages: LanguageModelInput, *, tools: Sequence[Any] = (), pin: bool = True) -> Self:
        """Stores the beginning of a conversation as a pool; returns this model, growing from it.

        `messages` and `tools` must open every conversation that shall share it: the system prompt and the tools, as a
        rule. The server compares token by token, so one that differs is served all the same, without sharing.
        """
        made = self.root_client.post(
            self._url("/polykv/pools"), cast_to=object, body=self._prefix(messages, tools, pin)
        )
        return self._grown_from(made)

    async def awith_pool(self, messages: LanguageModelInput, *, tools: Sequence[Any] = (), pin: bool = True) -> Self:
        """As `with_pool`."""
        body = self._prefix(messages, tools, pin)
        return self._grown_from(
            await self.root_async_client.post(self._url("/polykv/pools"), cast_to=object, body=body)
        )

    def release_pool(self) -> None:
        """Gives back the cells of the pool that this model grows from. Raises ValueError where it grows from none."""
        for path in self._release_paths():
            self.root_client.post(self._url(path), cast_to=object, body={})

    async def arelease_pool(self) -> None:
        """As `release_pool`."""
        for path in self._release_paths():
            await self.root_async_client.post(self._url(path), cast_to=object, body={})

    def close_session(self, session_id: str) -> None:
        """Gives back the cells of a session, or of a LangGraph thread. One that is not known is no error."""
        self.root_client.post(self._url(_close_path(session_id)), cast_to=object, body={})

    async def aclose_session(self, session_id: str) -> None:
        """As `close_session`."""
        await self.root_async_client.post(self._url(_close_path(session_id)), cast_to=object, body={})

    def invoke(
        self,
        input: LanguageModelInput,
        config: RunnableConfig | None = None,
        *,
        stop: list[str] | None = None,
        **kwargs: Any,
    ) -> AIMessage:
        return super().invoke(input, config, stop=stop, **_with_thread(config, kwargs))

    async def ainvoke(
        self,
        input: LanguageModelInput,
        config: RunnableConfig | None = None,
        *,
        stop: list[str] | None = None,
        **kwargs: Any,
    ) -> AIMessage:
        return await super().ainvoke(input, config, stop=stop, **_with_thread(config, kwargs))

    def stream(
        self,
        input: LanguageModelInput,
        config: RunnableConfig | None = None,
        *,
        stop: list[str] | None = None,
        **kwargs: Any,
    ) -> Iterator[AIMessageChunk]:
        return super().stream(input, config, stop=stop, **_with_thread(config, kwargs))

    def astream(
        self,
        input: LanguageModelInput,
        config: RunnableConfig | None = None,
        *,
        stop: list[str] | None = None,
        **kwargs: Any,
    ) -> AsyncIterator[AIMessageChunk]:
        return super().astream(input, config, stop=stop, **_with_thread(config, kwargs))

    def _url(self, path: str) -> str:
        """The control plane lies beside /v1."""
        return (self.openai_api_base or DEFAULT_URL).rstrip("/").removesuffix("/v1").rstrip("/") + path

    def _prefix(self, messages: LanguageModelInput, tools: Sequence[Any], pin: bool) -> dict[str, Any]:
        body: dict[str, Any] = {"messages": self._get_request_payload(messages)["messages"], "pin": pin}
        return body | {"tools": [convert_to_openai_tool(tool) for tool in tools]} if tools else body

    def _grown_from(self, made: object) -> Self:
        return self.model_copy(update={"pool_id": cast("dict[str, Any]", made)["pool_id"]})

    def _release_paths(self) -> tuple[str, str]:
        if self.pool_id is None:
            raise ValueError("this model grows from no pool; release the one that with_pool returned")
        return f"/polykv/pools/{self.pool_id}/unpin", f"/polykv/pools/{self.pool_id}/release"

    def _get_request_payload(
        self, input_: LanguageModelInput, *, stop: list[str] | None = None, **kwargs: Any
    ) -> dict[str, Any]:
        """Adds session and pool; `bind(session_id=..., pool_id=...)` goes before the model's own."""
        thread_id = kwargs.pop(THREAD_ARGUMENT, None) or _thread_id(ensure_config())
        session_id = kwargs.pop("session_id", None) or self.session_id or thread_id
        pool_id = kwargs.pop("pool_id", self.pool_id)
        payload = cast("dict[str, Any]", super()._get_request_payload(input_, stop=stop, **kwargs))  # pyright: ignore[reportUnknownMemberType] # bare dict
        named = {"session_id": session_id, "pool_id": pool_id}
        given = {name: value for name, value in named.items() if value is not None}
        named_model = {"model": self.model_name or None}
        return payload | named_model | {"extra_body": (payload.get("extra_body") or {}) | given}

    def _create_chat_result(
        self, response: dict[str, Any] | openai.BaseModel, generation_info: dict[str, Any] | None = None
    ) -> ChatResult:
        result = super()._create_chat_result(response, generation_info)  # pyright: ignore[reportUnknownMemberType] # bare dict
        body = response if isinstance(response, dict) else response.model_dump()
        for generation, choice in zip(result.generations, body["choices"], strict=True):
            _keep(generation.message, body, choice["message"])
        return result

    def _convert_chunk_to_generation_chunk(
        self, chunk: dict[str, Any], default_chunk_class: type, base_generation_info: dict[str, Any] | None
    ) -> ChatGenerationChunk | None:
        made = super()._convert_chunk_to_generation_chunk(  # pyright: ignore[reportUnknownMemberType] # bare dict
            chunk, default_chunk_class, base_generation_info
        )
        if made is not None:
            choices = cast("list[dict[str, Any]]", chunk.get("choices") or [{}])
            _keep(made.message, chunk, choices[0].get("delta") or {})
        return made


def _close_path(session_id: str) -> str:
    return f"/sessions/{quote(session_id, safe='')}/close"


def _with_thread(config: RunnableConfig | None, arguments: dict[str, Any]) -> dict[str, Any]:
    """Takes the thread along: LangChain does not hand the caller's config down to where the request is made."""
    thread_id = None if config is None else _thread_id(config)
    return arguments if thread_id is None else arguments | {THREAD_ARGUMENT: thread_id}


def _thread_id(config: RunnableConfig) -> str | None:
    """The LangGraph thread that calls; outside of one there is none."""
    thread_id = config.get("configurable", {}).get("thread_id")
    return None if thread_id is None else str(thread_id)


def _keep(message: BaseMessage, body: dict[str, Any], part: dict[str, Any]) -> None:
    """Keeps what ChatOpenAI drops: the pool's report, the timings, the thinking."""
    attach, timings = attach_of(body.get("opencoti")), timings_of(body.get("timings"))
    reports = {"pool": attach and asdict(attach), "timings": timings and asdict(timings)}
    told = {name: report for name, report in reports.items() if report}
    if told:
        message.response_metadata["polystem"] = told
    if part.get("reasoning_content"):
        message.additional_kwargs["reasoning_content"] = part["reasoning_content"]
