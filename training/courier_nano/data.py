"""Token ids, loss weights and positions of batches, drawn from one seed.

Training draws worlds of seeds from `TRAINING_SEEDS` upwards; what is measured has seeds below, the tokenizer far above.
Invariant: a weight belongs to the token it predicts, not to the token it is read from.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache

import torch
from tokenizers import Tokenizer
from torch import Tensor

from polystem.harness.handbook import base_text, system_text
from polystem.harness.world import HUBS, draw_packages
from training.courier_nano import tokenizer as bpe
from training.courier_nano.template import render
from training.courier_nano.transcripts import Transcript, transcript

TRAINING_SEEDS = 1_000_000
"""Seeds below this one are never trained on: they are for evaluation, tests and the harness."""

TOOLS_TOKENS = 280
LENGTH_STEP_TOKENS = 64
SHORT_STEPS = (2, 6)
LONGEST_TOKENS = 4_096
CONTEXT_WEIGHT = 0.1
ASSISTANT_WEIGHT = 1.0
HUB_WEIGHT = 2.0
DIGIT_WEIGHT = 3.0
DOOR_CODE_WEIGHT = 8.0


@dataclass(frozen=True, slots=True)
class Stage:
    """A part of the curriculum: how long its transcripts are, and how they are made.

    `prefix_tokens` None leaves system prompt and tools out. Skips may reach position `skip_to`; 0 skips none.
    In a share of the updates, `short_share`, jobs are short and positions skip: a door code is asked for sooner,
    so more of them are seen. The learning rate goes from one share of its peak to another, in a line.
    """

    name: str
    updates: int
    batch_tokens: int
    steps: tuple[int, int]
    prefix_tokens: tuple[int, int] | None = None
    error_share: float = 0.0
    skip_to: int = 0
    short_share: float = 0.0
    rate_shares: tuple[float, float] = (1.0, 1.0)


@dataclass(frozen=True, slots=True)
class Batch:
    """Ids, positions and weights, all (rows, tokens); padding has weight 0."""

    ids: Tensor
    positions: Tensor
    weights: Tensor


@dataclass(frozen=True, slots=True)
class Marks:
    """Ids that weights depend on."""

    assistant: tuple[int, ...]
    end: int
    pad: int
    digits: frozenset[int]
    hubs: frozenset[int]
    code: int


@cache
def marks() -> Marks:
    """Looks the marks up in the shipped tokenizer."""
    tokenizer = bpe.load()
    one = _one_token(tokenizer)
    return Marks(
        assistant=tuple(tokenizer.encode("<|im_start|>assistant\n").ids),
        end=one("<|im_end|>"),
        pad=one("<|pad|>"),
        digits=frozenset(one(digit) for digit in "0123456789"),
        hubs=frozenset(tokenizer.encode(hub).ids[-1] for hub in HUBS),
        code=one("code"),
    )


def _one_token(tokenizer: Tokenizer) -> Callable[[str], int]:
    def one(text: str) -> int:
        ids = tokenizer.encode(text).ids
        assert len(ids) == 1, f"{text!r} is {len(ids)} tokens"
        return ids[0]

    return one


def encode(made: Transcript, *, tools: bool) -> tuple[list[int], list[float]]:
    """Ids and weights of a transcript."""
    ids = bpe.load().encode(render(made.messages, tools=tools)).ids
    weights = [CONTEXT_WEIGHT] * len(ids)
    spans = assistant_spans(ids)
    assert len(spans) == len(made.learn)
    for (start, end), learn in zip(spans, made.learn, strict=True):
        weights[start:end] = _turn_weights(ids[start:end]) if learn else [0.0] * (end - start)
    return ids, weights


def assistant_spans(ids: list[int]) -> list[tuple[int, int]]:
    """Half-open ranges of what the assistant says, its end token included."""
    header, end = marks().assistant, marks().end
    spans: list[tuple[int, int]] = []
    for at in range(len(ids) - len(header)):
        if ids[at] == header[0] and tuple(ids[at : at + len(header)]) == header:
            start = at + len(header)
            spans.append((start, ids.index(end, start) + 1))
    return spans


def _turn_weights(turn: list[int]) -> list[float]:
    known = marks()
    weights: list[float] = []
    in_code = False
    for token in turn:
        in_code = in_code or token == known.code
        if token in known.digits:
            weights.append(DOOR_CODE_WEIGHT if in_code else DIGIT_WEIGHT)
        else:
            weights.append(HUB_WEIGHT if token in known.hubs else ASSISTANT_WEIGHT)
    return weights


def draw_batch(stage: Stage, seed: int, update: int, *, held_out: bool = False) -> Batch:
    """The batch of one update; rows have one step count and one prefix length, so padding is rare."""
    worlds = (0, TRAINING_SEEDS) if held_out else (TRAINING_SEEDS, bpe.CORPUS_SEED)
    dice = random.Random(f"{seed}/{stage.name}/{update}")
    if stage.short_share and dice.random() < stage.short_share:
        stage = replace(stage, steps=SHORT_STEPS, skip_to=LONGEST_TOKENS)
    steps = dice.randint(*stage.steps)
    prefix_tokens = stage.prefix_tokens and dice.randint(*stage.prefix_tokens)
    rows = [_draw_row(stage, dice, dice.randrange(*worlds), steps, prefix_tokens)]
    wanted = max(1, round(stage.batch_tokens / len(rows[0][0])))
    rows += [_draw_row(stage, dice, dice.randrange(*worlds), steps, prefix_tokens) for _ in range(wanted - 1)]
    positions = [_positions(len(ids), stage.skip_to, dice) for ids, _ in rows]
    return _collate(rows, positions)


def _draw_row(
    stage: Stage, dice: random.Random, world_seed: int, steps: int, prefix_tokens: int | None
) -> tuple[list[int], list[float]]:
    package = draw_packages(world_seed, 1, steps)[0]
    system = _system(prefix_tokens, world_seed)
    made = transcript(system, package, error_share=stage.error_share * dice.choice((0, 0, 1)), seed=world_seed)
    return encode(made, tools=prefix_tokens is not None)


def _system(prefix_tokens: int | None, seed: int) -> str:
    if prefix_tokens is None:
        return ""
    return system_text(max(prefix_tokens, _about_tokens(base_text())), _about_tokens, seed)


def _about_tokens(system: str) -> int:
    """Nearly the tokens of the templated prefix, for less than a tokenizer costs; training needs no exact length."""
    return TOOLS_TOKENS + len(system.split()) + system.count(".")


def _positions(tokens: int, skip_to: int, dice: random.Random) -> list[int]:
    """Positions with up to three random gaps; the last one stays below `skip_to`."""
    if skip_to <= tokens or dice.random() < 0.3:
        return list(range(tokens))
    spare = dice.randrange(skip_to - tokens)
    cuts = sorted(dice.randrange(tokens) for _ in range(3))
    gaps = sorted(dice.randrange(spare + 1) for _ in range(3))
    return [
        at + max((gap for cut, gap in zip(cuts, gaps, strict=True) if at >= cut), default=0) for at in range(tokens)
    ]


def _collate(rows: list[tuple[list[int], list[float]]], positions: list[list[int]]) -> Batch:
    longest = max(len(ids) for ids, _ in rows)
    longest += (1 - longest) % LENGTH_STEP_TOKENS  # few shapes: each new one costs the kernels a set-up
    ids = torch.full((len(rows), longest), marks().pad)
    weights = torch.zeros(len(rows), longest)
    places = torch.zeros(len(rows), longest, dtype=torch.long)
    for row, ((tokens, worth), at) in enumerate(zip(rows, positions, strict=True)):
        ids[row, : len(tokens)] = torch.tensor(tokens)
        weights[row, : len(tokens)] = torch.tensor(worth)
        places[row, : len(tokens)] = torch.tensor(at)
    return Batch(ids, places, weights)
