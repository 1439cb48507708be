"""Lets a model file carry packages in llama.cpp at temperature 0, and counts how many arrive.

All workers of an arm share one prefix; a package is dropped after `--max-errors` wrong calls.
Its seed is below those of training.
Usage: python -m training.courier_nano.evaluate MODEL.gguf [--arms 22:1216:8:F16:100]
"""

from __future__ import annotations

import argparse
import json
import re
import tempfile
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from polystem.harness.handbook import system_text
from polystem.harness.world import Job, Package, draw_packages, order_text
from training.courier_nano.llama import Llama, Piece, quantize
from training.courier_nano.template import Message, render, render_prefix

SEED = 77
MAX_ERRORS = 3
THREADS = 2
TURN_LIMIT_TOKENS = 96
CELLS_A_STEP = 56
HEAD = """\
| quant | steps | prefix tokens | workers | delivered | without error | wrong calls | dropped for |
| --- | --- | --- | --- | --- | --- | --- | --- |"""
TABLE_MARKS = ("<!-- table: python -m bench.courier_nano -->", "<!-- end of table -->")
END = "<|im_end|>"
CALL = re.compile(r"<tool_call>\n(.*)\n</tool_call>", re.DOTALL)
ARMS = (
    "22:1216:1:F16:100", "22:1216:8:F16:100", "56:1216:1:F16:100", "56:1216:8:F16:100",
    "22:383:8:F16:24", "22:875:8:F16:24", "22:2048:8:F16:24", "21:1216:8:F16:24", "56:383:8:F16:16", "56:875:8:F16:16",
    "22:1216:8:Q8_0:24", "22:1216:8:Q4_0:24", "22:1216:8:Q2_K:24", "56:1216:8:Q8_0:16", "56:1216:8:Q4_0:16",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Arm:
    """What is run: steps of a package, prefix, how many at a time, and in which quant."""

    steps: int
    prefix_tokens: int
    workers: int
    quant: str
    packages: int

    @classmethod
    def parse(cls, text: str) -> Arm:
        steps, prefix_tokens, workers, quant, packages = text.split(":")
        return cls(int(steps), int(prefix_tokens), int(workers), quant, int(packages))


@dataclass(slots=True)
class Worker:
    """One package on one sequence: what its cells hold, what is to be decoded next, and what it says at the moment."""

    sequence: int
    job: Job
    messages: list[Message]
    held: list[int]
    text: str = ""
    pending: list[int] = field(default_factory=list)
    turn: list[int] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)


@dataclass(slots=True)
class Tally:
    """How the packages of an arm ended."""

    delivered: int = 0
    delivered_without_error: int = 0
    dropped: Counter[str] = field(default_factory=Counter)
    errors: Counter[str] = field(default_factory=Counter)


class Evaluation:
    """Carries the packages of one arm."""

    def __init__(self, llama: Llama, arm: Arm, packages: Sequence[Package], max_errors: int) -> None:
        self.llama, self.arm, self.packages, self.max_errors = llama, arm, packages, max_errors
        self.system = system_text(arm.prefix_tokens, lambda text: len(llama.tokenize(render_prefix(text))), SEED)
        self.prefix = llama.tokenize(render_prefix(self.system))
        self.end = llama.tokenize(END)[0]
        self.tally = Tally()

    def run(self) -> Tally:
        self.llama.decode([Piece(0, 0, self.prefix)])
        waiting = iter(self.packages)
        workers = [worker for number in range(self.arm.workers) for worker in self._start(number + 1, waiting)]
        while workers:
            pieces = [Piece(worker.sequence, len(worker.held), worker.pending) for worker in workers]
            for worker, token in zip(workers, self.llama.decode(pieces), strict=True):
                self._take(worker, token)
            workers = [next_worker for worker in workers for next_worker in self._go_on(worker, waiting)]
        return self.tally

    def _start(self, sequence: int, waiting: Iterator[Package]) -> Iterator[Worker]:
        package = next(waiting, None)
        if package is not None:
            messages: list[Message] = [{"role": "system", "content": self.system}]
            messages.append({"role": "user", "content": order_text(package)})
            self.llama.borrow(sequence)
            worker = Worker(sequence, Job(package, self.packages), messages, list(self.prefix))
            self._prompt(worker)
            yield worker

    def _prompt(self, worker: Worker) -> None:
        """Sets what is to be decoded before the next turn: what the template adds to the cells held."""
        text = render(worker.messages, generation_prompt=True)
        if text.startswith(worker.text + END):  # a turn's end is one token, so what follows is tokenized by itself
            worker.pending = self.llama.tokenize(text[len(worker.text) :])
        else:
            self._rewind(worker, self.llama.tokenize(text))
        worker.text, worker.turn = text, []

    def _rewind(self, worker: Worker, tokens: list[int]) -> None:
        """Keeps the cells that the tokens begin with; the rest is decoded again."""
        pairs = zip(worker.held, tokens, strict=False)
        same = next((at for at, (held, token) in enumerate(pairs) if held != token), len(worker.held))
        self.llama.cut(worker.sequence, same)
        worker.held, worker.pending = tokens[:same], tokens[same:]

    def _take(self, worker: Worker, token: int) -> None:
        worker.held += worker.pending
        worker.turn.append(token)
        worker.pending = [token]

    def _go_on(self, worker: Worker, waiting: Iterator[Package]) -> Iterator[Worker]:
        """The worker while it has something to do, otherwise the next one in its place."""
        if worker.turn[-1] != self.end and len(worker.turn) < TURN_LIMIT_TOKENS:
            yield worker
            return
        self._end_turn(worker)
        if worker.job.done or len(worker.errors) >= self.max_errors:
            self._count(worker)
            yield from self._start(worker.sequence, waiting)
        else:
            self._prompt(worker)
            yield worker

    def _end_turn(self, worker: Worker) -> None:
        said = "".join(self.llama.text_of(token) for token in worker.turn if token != self.end)
        worker.text += said
        call = parse(said)
        if call is None:
            worker.errors.append("parse")
            worker.messages.append({"role": "assistant", "content": said})
            worker.messages.append({"role": "user", "content": "Error: no tool call."})
            return
        result = worker.job.apply(call["name"], call["arguments"])
        worker.errors += [result.cause] if result.cause else []
        worker.messages.append(
            {"role": "assistant", "content": "", "tool_calls": [{"type": "function", "function": call}]}
        )
        worker.messages.append({"role": "tool", "content": result.text})

    def _count(self, worker: Worker) -> None:
        self.tally.errors.update(worker.errors)
        if worker.job.done:
            self.tally.delivered += 1
            self.tally.delivered_without_error += not worker.errors
        else:
            self.tally.dropped[worker.errors[-1]] += 1


def parse(said: str) -> dict[str, Any] | None:
    """The tool call in a turn; None where there is none that can be read."""
    found = CALL.search(said)
    try:
        call = json.loads(found[1]) if found else None
    except ValueError:
        return None
    right = isinstance(call, dict) and isinstance(call.get("name"), str) and isinstance(call.get("arguments"), dict)
    return call if right else None


def run_arm(model: Path, arm: Arm, max_errors: int, threads: int) -> dict[str, Any]:
    """Runs one arm; gives its counts and how long it took."""
    cells = arm.prefix_tokens + arm.workers * (arm.steps + max_errors + 1) * CELLS_A_STEP
    llama = Llama(model, cells=cells, sequences=arm.workers + 1, threads=threads)
    started_at = time.perf_counter()
    evaluation = Evaluation(llama, arm, draw_packages(SEED, arm.packages, arm.steps), max_errors)
    tally = evaluation.run()
    wall_s = round(time.perf_counter() - started_at, 1)
    llama.close()
    counts = {
        "delivered": tally.delivered,
        "delivered_without_error": tally.delivered_without_error,
        "errors": dict(tally.errors),
        "dropped": dict(tally.dropped),
    }
    return {**asdict(arm), "prefix_tokens": len(evaluation.prefix), **counts, "wall_s": wall_s}


def row_text(row: dict[str, Any]) -> str:
    """A row of the table in Markdown."""
    settings = (row[name] for name in ("quant", "steps", "prefix_tokens", "workers"))
    causes = (", ".join(f"{cause} {count}" for cause, count in row[name].items()) for name in ("errors", "dropped"))
    cells = (*settings, f"{row['delivered']} of {row['packages']}", row["delivered_without_error"], *causes)
    return "| " + " | ".join(map(str, cells)) + " |"


def write_table(card: Path, rows: Sequence[dict[str, Any]]) -> None:
    """Puts the table between the marks of a model card."""
    table = "\n".join((HEAD, *map(row_text, rows)))
    before, rest = card.read_text(encoding="utf-8").split(TABLE_MARKS[0])
    after = rest.split(TABLE_MARKS[1])[1]
    card.write_text(f"{before}{TABLE_MARKS[0]}\n{table}\n{TABLE_MARKS[1]}{after}", encoding="utf-8")


def model_in(quant: str, model: Path, folder: Path) -> Path:
    """The model file in a quant; written once."""
    target = folder / f"{quant}.gguf"
    if quant == "F16":
        return model
    if not target.exists():
        quantize(model, target, quant)
    return target


def run_arms(model: Path, arms: Iterable[Arm], max_errors: int, threads: int) -> Iterator[dict[str, Any]]:
    """The counts of each arm, as each ends; quants are written to a folder that is gone afterwards."""
    with tempfile.TemporaryDirectory() as folder:
        for arm in arms:
            yield run_arm(model_in(arm.quant, model, Path(folder)), arm, max_errors, threads)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path)
    parser.add_argument(
        "--arms", default=",".join(ARMS), help="steps:prefix:workers:quant:packages, with commas between"
    )
    parser.add_argument("--max-errors", type=int, default=MAX_ERRORS)
    parser.add_argument("--threads", type=int, default=THREADS)
    args = parser.parse_args()
    print(HEAD, flush=True)
    for row in run_arms(args.model, map(Arm.parse, args.arms.split(",")), args.max_errors, args.threads):
        print(row_text(row), f"{row['wall_s']} s", flush=True)


if __name__ == "__main__":
    main()
