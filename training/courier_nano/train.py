"""Trains courier-nano on two CPU cores, through a curriculum of lengths.

Copying is learnt on transcripts of a hundred tokens, in minutes; then lengths grow to the longest ever asked for.
The run can be stopped and started again: it goes on from its last checkpoint.
Usage: python -m training.courier_nano.train [--out build/courier-nano] [--threads 2]
"""

from __future__ import annotations

import argparse
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from training.courier_nano import tokenizer as bpe
from training.courier_nano.data import Batch, Stage, assistant_spans, draw_batch, marks
from training.courier_nano.model import Llama, Shape
from training.courier_nano.muon import Muon

SEED = 20
PEAK_RATE = 4e-3
WARMUP_UPDATES = 30
CHECKPOINT_UPDATES = 50
CHECK_UPDATES = 100
HELD_OUT_SEED = 500

SCHEDULE: tuple[Stage, ...] = (
    Stage("copy", 140, 6_000, (2, 3)),
    Stage("hops", 120, 6_000, (2, 7), error_share=0.1, skip_to=1_500),
    Stage("tools", 240, 6_500, (2, 16), (0, 500), error_share=0.08, skip_to=4_096),
    Stage("handbook", 400, 7_000, (4, 30), (0, 1_300), error_share=0.06, skip_to=4_096),
    Stage("long", 200, 7_000, (8, 58), (0, 2_048), error_share=0.04, short_share=0.35),
    Stage("settle", 50, 7_000, (8, 58), (0, 2_048), error_share=0.04, short_share=0.35, rate_shares=(1.0, 0.9)),
    Stage("finish", 500, 7_000, (8, 58), (0, 2_048), error_share=0.04, short_share=0.35, rate_shares=(0.9, 0.0)),
)

CHECKS: tuple[Stage, ...] = (
    Stage("check-copy", 1, 2_000, (2, 2)),
    Stage("check-1-hop", 1, 3_000, (4, 4), (383, 383)),
    Stage("check-10-hops", 1, 7_000, (22, 22), (875, 875)),
    Stage("check-27-hops", 1, 7_000, (56, 56), (1_216, 1_216)),
)


@dataclass(slots=True)
class Run:
    """Model, optimizers and how far the schedule has come."""

    model: Llama
    optimizers: list[torch.optim.Optimizer]
    update: int = 0
    trained_s: float = 0.0
    losses: list[float] = field(default_factory=list)

    def state(self) -> dict[str, Any]:
        optimizers = [optimizer.state_dict() for optimizer in self.optimizers]
        return {
            "model": self.model.state_dict(),
            "optimizers": optimizers,
            "update": self.update,
            "trained_s": self.trained_s,
        }

    def restore(self, state: dict[str, Any]) -> None:
        self.model.load_state_dict(state["model"])
        for optimizer, saved in zip(self.optimizers, state["optimizers"], strict=True):
            optimizer.load_state_dict(saved)
        self.update, self.trained_s = state["update"], state["trained_s"]


def new_run() -> Run:
    """A run at its start: Muon for the matrices of the layers, AdamW for embeddings and norms."""
    torch.manual_seed(SEED)
    model = Llama(Shape(vocab=bpe.load().get_vocab_size()))
    matrices = [weight for weight in model.layers.parameters() if weight.dim() == 2]
    rest = [weight for weight in model.parameters() if weight.dim() == 1] + [model.embedding.weight]
    muon = Muon(matrices, lr=PEAK_RATE)
    adamw = torch.optim.AdamW(rest, lr=PEAK_RATE, betas=(0.9, 0.95), weight_decay=0.0)
    return Run(model, [muon, adamw])


def total_updates() -> int:
    return sum(stage.updates for stage in SCHEDULE)


def stage_at(update: int) -> tuple[Stage, int]:
    """The stage of an update, and how many updates of that stage come before it."""
    for stage in SCHEDULE:
        if update < stage.updates:
            return stage, update
        update -= stage.updates
    raise IndexError(update)


def rate_at(update: int) -> float:
    """Linear warm-up, then what the stage says."""
    stage, done = stage_at(update)
    start, end = stage.rate_shares
    return PEAK_RATE * min((update + 1) / WARMUP_UPDATES, start + (end - start) * done / stage.updates)


def loss_of(model: Llama, batch: Batch) -> Tensor:
    """Mean cross entropy of the next token, weighted."""
    logits = model(batch.ids[:, :-1], batch.positions[:, :-1])
    each = F.cross_entropy(logits.float().flatten(0, 1), batch.ids[:, 1:].flatten(), reduction="none")
    weights = batch.weights[:, 1:].flatten()
    return (each * weights).sum() / weights.sum()


def take_update(run: Run) -> float:
    """One optimizer step on the batch of the run's next update; gives the loss."""
    batch = draw_batch(stage_at(run.update)[0], SEED, run.update)
    for optimizer in run.optimizers:
        optimizer.zero_grad(set_to_none=True)
        for group in optimizer.param_groups:
            group["lr"] = rate_at(run.update)
    loss = loss_of(run.model, batch)
    loss.backward()
    torch.nn.utils.clip_grad_norm_(run.model.parameters(), 1.0)
    for optimizer in run.optimizers:
        optimizer.step()
    run.update += 1
    return loss.item()


@torch.no_grad()
def exact_turns(model: Llama, check: Stage) -> tuple[int, int, int, int]:
    """Turns of the assistant right in every token, and how many there are; then the same for whole packages."""
    batch = draw_batch(check, HELD_OUT_SEED, 0, held_out=True)
    guesses = model(batch.ids, batch.positions).argmax(-1)
    turns = right = whole = 0
    for ids, guess in zip(batch.ids.tolist(), guesses.tolist(), strict=True):
        spans = assistant_spans([token for token in ids if token != marks().pad])
        good = [guess[start - 1 : end - 1] == ids[start:end] for start, end in spans]
        turns, right, whole = turns + len(good), right + sum(good), whole + all(good)
    return right, turns, whole, len(batch.ids)


def check(run: Run) -> str:
    """The exact turns of each check, in a line."""
    found = ((stage.name, exact_turns(run.model, stage)) for stage in CHECKS)
    return "  ".join(f"{name.removeprefix('check-')} {r}/{t} turns {w}/{n} whole" for name, (r, t, w, n) in found)


def train(run: Run, out: Path) -> None:
    """Takes all updates that are left; leaves a checkpoint every `CHECKPOINT_UPDATES`."""
    while run.update < total_updates():
        started_at = time.perf_counter()
        run.losses.append(take_update(run))
        run.trained_s += time.perf_counter() - started_at
        if run.update % 10 == 0:
            _print_progress(run, time.perf_counter() - started_at)
        if run.update % CHECK_UPDATES == 0:
            print(f"  exact: {check(run)}", flush=True)
        if run.update % CHECKPOINT_UPDATES == 0 or run.update == total_updates():
            torch.save(run.state(), out / "checkpoint.part")
            (out / "checkpoint.part").rename(out / "checkpoint.pt")


def _print_progress(run: Run, update_s: float) -> None:
    left_s = (total_updates() - run.update) * update_s
    loss = sum(run.losses[-10:]) / 10
    print(
        f"{time.strftime('%H:%M:%S')} {stage_at(run.update - 1)[0].name} update {run.update}/{total_updates()}"
        f" loss {loss:.4f} {update_s:.2f} s an update, trained {run.trained_s / 60:.1f} min,"
        f" about {left_s / 60:.0f} min left",
        flush=True,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("build/courier-nano"))
    parser.add_argument("--threads", type=int, default=2)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    args.out.mkdir(parents=True, exist_ok=True)
    run = new_run()
    if (args.out / "checkpoint.pt").exists():
        run.restore(torch.load(args.out / "checkpoint.pt"))
    train(run, args.out)


if __name__ == "__main__":
    main()
