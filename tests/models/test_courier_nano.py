"""The shipped model file: its tokenizer is the trainer's, its template the one it was trained by."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import llama_cpp
import pytest

import polystem

ROOT = Path(__file__).parents[2]
MODEL = Path(polystem.__file__).parent / "models" / "courier-nano-f16.gguf"
CASES: list[dict[str, Any]] = json.loads(
    Path(__file__).with_name("courier_nano_tokens.json").read_text(encoding="utf-8")
)
MAX_MODEL_BYTES = 10_000_000

ll: Any = llama_cpp


@pytest.fixture(scope="module")
def model() -> Iterator[Any]:
    """The model's vocabulary and metadata, without its weights."""
    settings = ll.llama_model_default_params()
    settings.vocab_only = True
    loaded = ll.llama_model_load_from_file(str(MODEL).encode(), settings)
    assert loaded
    yield loaded
    ll.llama_model_free(loaded)


def ids_of(model: Any, text: str) -> list[int]:
    raw = text.encode()
    room = (ll.llama_token * (len(raw) + 8))()
    count = ll.llama_tokenize(ll.llama_model_get_vocab(model), raw, len(raw), room, len(room), False, True)
    return list(room[:count])


@pytest.mark.native
@pytest.mark.parametrize("case", CASES, ids=range(len(CASES)))
def test_llama_cpp_gives_the_ids_of_the_trainer(model: Any, case: dict[str, Any]) -> None:
    assert ids_of(model, case["text"]) == case["ids"]


@pytest.mark.native
def test_each_digit_is_a_token_of_its_own(model: Any) -> None:
    digits = [ids_of(model, digit) for digit in "0123456789"]
    assert all(len(ids) == 1 for ids in digits)
    assert ids_of(model, "40213") == [digits[int(digit)][0] for digit in "40213"]


@pytest.mark.native
def test_the_file_carries_the_template_it_was_trained_by(model: Any) -> None:
    source = ROOT / "training" / "courier_nano" / "chat_template.jinja"
    assert ll.llama_model_chat_template(model, None).decode() == source.read_text(encoding="utf-8").rstrip("\n")


@pytest.mark.native
def test_a_turn_ends_with_the_end_of_generation(model: Any) -> None:
    (end,) = ids_of(model, "<|im_end|>")
    vocab = ll.llama_model_get_vocab(model)
    assert ll.llama_vocab_is_eog(vocab, end)
    assert not ll.llama_vocab_get_add_bos(vocab)


def test_the_file_is_small_enough_to_ship() -> None:
    assert MODEL.stat().st_size <= MAX_MODEL_BYTES
