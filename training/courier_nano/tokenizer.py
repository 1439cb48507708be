"""The byte-level BPE of courier-nano: few entries, each digit a token of its own.

llama.cpp splits the same way with the pre-tokenizer `smollm`: digits one by one, then the pattern of GPT-2.
Usage: python -m training.courier_nano.tokenizer   (writes tokenizer.json beside this file)
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers

from polystem.harness.handbook import base_text, system_text
from polystem.harness.world import draw_packages
from training.courier_nano.template import render, render_prefix
from training.courier_nano.transcripts import transcript

TOKENIZER_PATH = Path(__file__).with_name("tokenizer.json")
VOCAB_ENTRIES = 736
CONTROL = ("<|im_start|>", "<|im_end|>", "<|pad|>")
USER_DEFINED = (
    "<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>", "<tools>", "</tools>",
    '{"name": "', '", "arguments": {"',
)  # fmt: skip
CORPUS_SEED = 900_000_000


def build() -> Tokenizer:
    """Trains the tokenizer on transcripts of its own seed."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCAB_ENTRIES,
        min_frequency=2,
        special_tokens=[AddedToken(text, special=True, normalized=False) for text in (*CONTROL, *USER_DEFINED)],
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator(_corpus(), trainer)
    return tokenizer


def _corpus() -> Iterator[str]:
    for seed in range(CORPUS_SEED, CORPUS_SEED + 60):
        yield from (render_prefix(system_text(1200, len_in_words, seed)), *[render_prefix(base_text())] * 4)
        for package in draw_packages(seed, 4, 20):
            yield render(transcript("", package).messages)


def len_in_words(text: str) -> int:
    """A counter for the corpus, made before there is a tokenizer."""
    return len(text.split())


@cache
def load() -> Tokenizer:
    """The tokenizer as shipped."""
    return Tokenizer.from_file(str(TOKENIZER_PATH))


def prefix_counter() -> Callable[[str], int]:
    """Counts the tokens of the templated prefix around a system text."""
    tokenizer = load()
    return lambda system: len(tokenizer.encode(render_prefix(system)).ids)


if __name__ == "__main__":
    build().save(str(TOKENIZER_PATH))
