"""Runs llama-cpp-python's example server until it is told to end: `python -m bench.llama_cpp_server MODEL`.

The server is what `llama_cpp.server` gives, with a chat format registered through the library's own decorator: its
formats that render a model's own template hand tool calls out as text, by which no agent can go on, and its streams
tell no usage. This one reads the calls and counts the tokens. /apply-template and /tokenize are added, so that the
prefix is counted as on the other servers. Prints its URL once it listens.
"""

from __future__ import annotations

import argparse
import json
import re
import socket
from collections.abc import Iterator, Mapping, Sequence
from importlib import import_module
from itertools import takewhile
from typing import Any, TypeAlias, cast

Json: TypeAlias = dict[str, Any]

FORMAT = "calls-between-tags"
_CALL = re.compile(r"<tool_call>\s*(\{.*?\})\s*</tool_call>", re.DOTALL)


def calls_of(text: str) -> list[Json]:
    """The tool calls of an answer, as the OpenAI API tells them; what is no JSON is none."""
    calls = list[Json]()
    for found in _CALL.findall(text):
        try:
            call = json.loads(found)
            function = {"name": call["name"], "arguments": json.dumps(call["arguments"])}
        except (ValueError, KeyError, TypeError):
            continue
        calls.append({"index": len(calls), "id": f"call_{len(calls)}", "type": "function", "function": function})
    return calls


def common_tokens(held: Sequence[int], wanted: Sequence[int]) -> int:
    """How many tokens two prompts have in common from the start."""
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(held, wanted, strict=False)))


def chunks_of(text: str, finish_reason: str, usage: Json) -> Iterator[Json]:
    """An answer as the chunks of a stream; usage comes with the last."""
    calls = calls_of(text)
    delta: Json = {"role": "assistant", "content": None, "tool_calls": calls} if calls else {"content": text}
    reason = "tool_calls" if calls and finish_reason == "stop" else finish_reason
    yield {"choices": [{"index": 0, "delta": delta, "finish_reason": None}]}
    yield {"choices": [{"index": 0, "delta": {}, "finish_reason": reason}], "usage": usage}


class Chat:
    """The chat format: the model's own template, calls read from the answer, tokens counted."""

    def __init__(self, formatter: Any) -> None:
        self._formatter = formatter

    def rendered(self, messages: Sequence[Json], tools: Sequence[Json] | None, *, opened: bool) -> str:
        """The prompt text; `opened` is whether an answer is begun at its end."""
        self._formatter.add_generation_prompt = opened
        return self._formatter(messages=_without_nothing(messages), tools=tools).prompt

    def __call__(
        self, *, llama: Any, messages: Sequence[Json], tools: Sequence[Json] | None = None, **rest: Any
    ) -> Any:
        """One turn. The library's own penalty on repeated tokens is off: numbers have to be repeated here."""
        prompt = llama.tokenize(self.rendered(messages, tools, opened=True).encode(), add_bos=False, special=True)
        cached = min(common_tokens(llama.input_ids[: llama.n_tokens].tolist(), prompt), len(prompt) - 1)
        asked = {
            name: rest[name] for name in ("temperature", "max_tokens", "top_p", "seed") if rest.get(name) is not None
        }
        answer = llama.create_completion(prompt=prompt, repeat_penalty=1.0, stop=[self._formatter.eos_token], **asked)
        choice, usage = answer["choices"][0], dict(answer["usage"])
        usage["prompt_tokens_details"] = {"cached_tokens": cached}
        return chunks_of(choice["text"], choice["finish_reason"], usage)


def _without_nothing(messages: Sequence[Json]) -> list[Json]:
    return [{name: value for name, value in message.items() if value is not None} for message in messages]


def special_text(llama: Any, token: int) -> str:
    """A control token as the template writes it."""
    return llama.detokenize([token], special=True).decode() if token >= 0 else ""


def make_app(model: str, *, cells: int, threads: int) -> Any:
    """The example server with its model loaded."""
    formats = cast("Any", import_module("llama_cpp.llama_chat_format"))
    server, settings = cast("Any", import_module("llama_cpp.server.app")), import_module("llama_cpp.server.settings")
    chats = list[Chat]()

    @formats.register_chat_completion_handler(FORMAT)
    def chat(*, llama: Any, **turn: Any) -> Any:  # pyright: ignore[reportUnusedFunction]
        return chats[0](llama=llama, **turn)

    app = server.create_app(
        server_settings=cast("Any", settings).ServerSettings(interrupt_requests=False),
        model_settings=[
            cast("Any", settings).ModelSettings(
                model=model, model_alias="model", n_ctx=cells, n_threads=threads, n_threads_batch=threads,
                logits_all=False, chat_format=FORMAT, verbose=False,
            )
        ],
    )  # fmt: skip
    llama = server._llama_proxy("model")
    ends, begins = special_text(llama, llama.token_eos()), special_text(llama, llama.token_bos())
    chats.append(Chat(formats.Jinja2ChatFormatter(llama.metadata["tokenizer.chat_template"], ends, begins)))

    async def apply_template(body: Json) -> Mapping[str, Any]:
        return {"prompt": chats[0].rendered(body["messages"], body.get("tools"), opened=False)}

    async def tokenize(body: Json) -> Mapping[str, Any]:
        return {"tokens": llama.tokenize(body["content"].encode(), add_bos=False, special=True)}

    app.post("/apply-template")(apply_template)
    app.post("/tokenize")(tokenize)
    return app


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model")
    parser.add_argument("--cells", type=int, required=True)
    parser.add_argument("--threads", type=int, required=True)
    asked = parser.parse_args()
    app = make_app(asked.model, cells=asked.cells, threads=asked.threads)
    listening = socket.create_server(("127.0.0.1", 0))
    print(f"http://127.0.0.1:{listening.getsockname()[1]}", flush=True)
    uvicorn = cast("Any", import_module("uvicorn"))
    uvicorn.Server(uvicorn.Config(app, log_level="error")).run(sockets=[listening])


if __name__ == "__main__":
    main()
