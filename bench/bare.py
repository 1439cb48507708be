"""A bare llama.cpp loop: decode calls over a shared prefix and nothing else, the most that a server could reach.

`python -m bench.bare MODEL SETTINGS_JSON` reads one JSON object a line, {"workers": N, "steps": T}, decodes T steps of
N rows that share the prefix, and answers {"tps": ...}. No sampling, no text, no network: the rows hold tokens that
were drawn beforehand, and threads wait for each other as the library has it, unless `environment` says otherwise.
`BareLoop` is the other end: it runs that in a child process.
"""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self, cast

import llama_cpp as _package  # pyright: ignore[reportMissingTypeStubs]

__all__ = ["BareLoop"]

_ll = cast("Any", _package)
WARM_UP_STEPS = 3
LOWEST_TOKEN = 64
CACHE_TYPE_IDS = {"f32": 0, "f16": 1, "q4_0": 2, "q8_0": 8, "bf16": 30}


class BareLoop:
    """The loop in a child process; use in a `with` block."""

    def __init__(
        self,
        model: Path,
        settings: dict[str, Any],
        *,
        prefix_tokens: int,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        told = json.dumps(settings | {"prefix_tokens": prefix_tokens})
        self._process = subprocess.Popen(
            [sys.executable, "-m", "bench.bare", str(model), told],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=os.environ | dict(environment or {}),
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: type[BaseException] | BaseException | TracebackType | None) -> None:
        self._process.communicate()

    def tps(self, *, workers: int, steps: int) -> float:
        """Tokens a second of all workers together."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        print(json.dumps({"workers": workers, "steps": steps}), file=self._process.stdin, flush=True)
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError(f"the bare loop ended with {self._process.wait()}")
        return float(json.loads(line)["tps"])


def _silent(_level: int, _text: bytes, _data: object) -> None:
    """llama.cpp's log is not wanted here."""


def _open(model_path: str, settings: dict[str, Any]) -> tuple[Any, int]:
    model_params = _ll.llama_model_default_params()
    if settings["repack"] is not None:
        model_params.use_extra_bufts = settings["repack"]
    model = _ll.llama_model_load_from_file(model_path.encode(), model_params)
    params = _ll.llama_context_default_params()
    params.n_ctx, params.n_batch, params.n_ubatch = settings["cells"], 2048, settings["micro_batch_tokens"]
    params.n_seq_max, params.kv_unified = settings["sequences"], True
    params.flash_attn_type = -1 if settings["flash_attention"] is None else int(settings["flash_attention"])
    params.n_threads, params.n_threads_batch = settings["threads"], settings["threads_batch"]
    params.type_k = CACHE_TYPE_IDS[settings["cache_type_k"]]
    params.type_v = CACHE_TYPE_IDS[settings["cache_type_v"]]
    return _ll.llama_init_from_model(model, params), _ll.llama_vocab_n_tokens(_ll.llama_model_get_vocab(model))


def _fill(batch: Any, rows: list[tuple[int, int, int]], *, all_logits: bool) -> None:
    """Rows of (token, position, sequence)."""
    batch.n_tokens = len(rows)
    for place, (token, position, sequence) in enumerate(rows):
        batch.token[place], batch.pos[place] = token, position
        batch.n_seq_id[place], batch.seq_id[place][0] = 1, sequence
        batch.logits[place] = all_logits or place == len(rows) - 1


def _decode(context: Any, batch: Any) -> None:
    if (status := _ll.llama_decode(context, batch)) != 0:
        raise RuntimeError(f"llama_decode returned {status}")


def _timed_tps(context: Any, batch: Any, tokens: list[int], prefix_tokens: int, workers: int, steps: int) -> float:
    memory = _ll.llama_get_memory(context)
    for worker in range(1, workers + 1):
        _ll.llama_memory_seq_cp(memory, 0, worker, -1, -1)
    begun_s = 0.0
    for step in range(WARM_UP_STEPS + steps):
        if step == WARM_UP_STEPS:
            _ll.llama_synchronize(context)
            begun_s = time.perf_counter()
        rows = [(tokens[step * workers + row], prefix_tokens + step, row + 1) for row in range(workers)]
        _fill(batch, rows, all_logits=True)
        _decode(context, batch)
    _ll.llama_synchronize(context)
    lasted_s = time.perf_counter() - begun_s
    for worker in range(1, workers + 1):
        _ll.llama_memory_seq_rm(memory, worker, -1, -1)
    return workers * steps / lasted_s


def serve_stdin(model_path: str, settings: dict[str, Any]) -> None:
    """Answers each line of stdin until it ends."""
    silence = _ll.llama_log_callback(_silent)
    _ll.llama_log_set(silence, None)
    _ll.llama_backend_init()
    context, vocab_tokens = _open(model_path, settings)
    batch, dice, prefix_tokens = _ll.llama_batch_init(2048, 0, 1), random.Random(0), settings["prefix_tokens"]

    def draw(count: int) -> list[int]:
        return [dice.randrange(LOWEST_TOKEN, vocab_tokens) for _ in range(count)]

    _fill(batch, [(token, place, 0) for place, token in enumerate(draw(prefix_tokens))], all_logits=False)
    _decode(context, batch)
    for line in sys.stdin:
        asked = json.loads(line)
        workers, steps = asked["workers"], asked["steps"]
        tokens = draw(workers * (WARM_UP_STEPS + steps))
        print(json.dumps({"tps": _timed_tps(context, batch, tokens, prefix_tokens, workers, steps)}), flush=True)


if __name__ == "__main__":
    serve_stdin(sys.argv[1], json.loads(sys.argv[2]))
