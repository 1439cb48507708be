"""The process that `tune` measures in: one model, loaded once, and a context for each set of settings.

Reads one JSON command a line and answers with one line; it may crash, which is an answer too. Knows no question and no
comparison. `python -m polystem.engine.llama.tune_worker MODEL REPACK`.
"""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from typing import Any, cast

from polystem.clock import Clock, SystemClock
from polystem.engine.llama.native import Batch, NativeContext, NativeModel
from polystem.engine.llama.settings import CacheType, LlamaSettings
from polystem.errors import EngineBuildError, PolystemError

__all__ = ["Bed", "Command", "answer"]

_POOL = 0
_CHUNK_TOKENS = 512


@dataclass(frozen=True, slots=True)
class Command:
    """What to measure, with which settings. The workload is the same in all commands to one process."""

    what: str
    threads: int
    threads_batch: int
    flash_attention: bool
    micro_batch_tokens: int
    cache_type_k: str
    cache_type_v: str
    prefix_tokens: int
    workers: int
    steps: int
    prefill_tokens: int

    @property
    def bed_key(self) -> tuple[object, ...]:
        """What a context is made for: threads can be changed in one that exists."""
        return (self.flash_attention, self.micro_batch_tokens, self.cache_type_k, self.cache_type_v)


class Bed:
    """A context with the shared prefix in place, lent to all workers; measuring leaves it as it was.

    Sequence 0 holds the prefix, 1 to `workers` borrow it, `workers` + 1 is for prompts.
    """

    def __init__(self, model: NativeModel, path: Path, command: Command, clock: Clock) -> None:
        self._clock = clock
        self._command = command
        self._vocab_tokens = model.vocabulary.size
        private = command.workers * (command.steps + 1) + command.prefill_tokens
        settings = LlamaSettings(
            path,
            cells=max(256, command.prefix_tokens + private + 64),
            sequences=command.workers + 2,
            threads=command.threads,
            threads_batch=command.threads_batch,
            flash_attention=command.flash_attention,
            micro_batch_tokens=command.micro_batch_tokens,
            cache_type_k=cast(CacheType, command.cache_type_k),
            cache_type_v=cast(CacheType, command.cache_type_v),
            prefill_chunk_tokens=_CHUNK_TOKENS,
        )
        self._context = NativeContext(model, settings)
        self._batch = Batch(self._context.batch_tokens)
        self._prefill(_POOL, command.prefix_tokens)
        for worker in range(1, command.workers + 1):
            self._context.lend(_POOL, worker, command.prefix_tokens)

    def use_threads(self, command: Command) -> None:
        self._context.set_threads(command.threads, command.threads_batch)

    def decode_s(self, workers_at_once: int) -> float:
        """The median time of a step in which so many workers add one token each; the first step warms up."""
        workers = range(1, workers_at_once + 1)
        durations: list[float] = []
        for step in range(self._command.steps + 1):
            position = self._command.prefix_tokens + step
            self._batch.clear()
            self._batch.add_decodes([self._token(position)] * len(workers), [position] * len(workers), workers)
            durations.append(self._run())
        for worker in workers:
            self._context.trim(worker, self._command.prefix_tokens)
        return median(durations[1:])

    def prefill_s(self) -> float:
        """The time of a prompt that shares nothing."""
        sequence = self._command.workers + 1
        duration_s = self._prefill(sequence, self._command.prefill_tokens)
        self._context.trim(sequence, 0)
        return duration_s

    def _prefill(self, sequence: int, tokens: int) -> float:
        duration_s = 0.0
        for start in range(0, tokens, _CHUNK_TOKENS):
            positions = range(start, min(start + _CHUNK_TOKENS, tokens))
            chunk = [self._token(position) for position in positions]
            self._batch.clear()
            self._batch.add_chunk(chunk, first_position=start, sequence=sequence, last_wants_logits=True)
            duration_s += self._run()
        return duration_s

    def _token(self, position: int) -> int:
        return (position * 7919 + 11) % self._vocab_tokens

    def _run(self) -> float:
        start_s = self._clock.now_s()
        status = self._context.decode(self._batch)
        if status != 0:
            raise EngineBuildError(f"llama_decode returned {status}")
        return self._clock.now_s() - start_s

    def close(self) -> None:
        self._context.close()


class Workshop:
    """The contexts of one process, made when first asked for."""

    def __init__(self, path: Path, *, repack: bool, clock: Clock | None = None) -> None:
        self._path = path
        self._clock = clock or SystemClock()
        self._model = NativeModel(path, repack=repack)
        self._beds: dict[tuple[object, ...], Bed] = {}

    def measure_s(self, command: Command) -> float:
        """Seconds of what the command asks for. Raises PolystemError where llama.cpp refuses the settings."""
        bed = self._beds.get(command.bed_key)
        if bed is None:
            bed = Bed(self._model, self._path, command, self._clock)
            self._beds[command.bed_key] = bed
            bed.use_threads(command)
            bed.decode_s(command.workers)
        bed.use_threads(command)
        match command.what:
            case "decode":
                return bed.decode_s(command.workers)
            case "alone":
                return bed.decode_s(1)
            case _:
                return bed.prefill_s()

    def keep_only(self, command: Command) -> None:
        """Closes the contexts of other settings."""
        for key in [key for key in self._beds if key != command.bed_key]:
            self._beds.pop(key).close()

    def close(self) -> None:
        for bed in self._beds.values():
            bed.close()
        self._beds.clear()
        self._model.close()


def answer(workshop: Workshop, line: str) -> dict[str, Any]:
    """Runs one command: {"seconds": ...}, or {"error": ...}."""
    command = Command(**json.loads(line))
    try:
        if command.what == "keep":
            workshop.keep_only(replace(command, what="decode"))
            return {"seconds": 0.0}
        return {"seconds": workshop.measure_s(command)}
    except PolystemError as exc:
        return {"error": exc.message}


def main() -> int:
    """Answers until its input ends."""
    try:
        workshop = Workshop(Path(sys.argv[1]), repack=sys.argv[2] == "1")
    except PolystemError as exc:
        print(json.dumps({"model_error": exc.message}), flush=True)
        return 1
    for line in sys.stdin:
        print(json.dumps(answer(workshop, line)), flush=True)
    workshop.close()
    return 0


if __name__ == "__main__":
    sys.exit(main())
