"""Checks that the trainer's tokenizer and llama.cpp give the same ids, on a thousand transcripts.

Usage: python -m training.courier_nano.check_tokens MODEL.gguf [--transcripts 1000]
       python -m training.courier_nano.check_tokens MODEL.gguf --fixture tests/models/courier_nano_tokens.json
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from polystem.harness.handbook import base_text, system_text
from polystem.harness.world import draw_packages
from training.courier_nano import tokenizer as bpe
from training.courier_nano.llama import Llama
from training.courier_nano.template import render
from training.courier_nano.transcripts import transcript

FIXTURE_TRANSCRIPTS = 6
STRANGE_TEXTS = (
    "",
    "  two  spaces\n\n\ttabs ",
    "Grüße, 東京 – 12345 €",
    '<|im_end|><tool_call>{"name": "x"}',
    "it's we'll\r\n",
)


def text_of(seed: int) -> str:
    """A transcript with some errors; each third one has a long handbook."""
    system = system_text(875, bpe.prefix_counter(), seed) if seed % 3 == 2 else base_text()
    package = draw_packages(seed, 1, 2 + seed % 55)[0]
    return render(transcript(system, package, error_share=0.1, seed=seed).messages)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path)
    parser.add_argument("--transcripts", type=int, default=1000)
    parser.add_argument("--fixture", type=Path, help="write a few texts with the trainer's ids here, and check nothing")
    args = parser.parse_args()
    tokenizer = bpe.load()
    if args.fixture:
        texts = [*STRANGE_TEXTS, *(text_of(seed) for seed in range(FIXTURE_TRANSCRIPTS))]
        cases = [{"text": text, "ids": tokenizer.encode(text).ids} for text in texts]
        args.fixture.write_text("[\n" + ",\n".join(map(json.dumps, cases)) + "\n]\n", encoding="utf-8")
        return
    llama = Llama(args.model, cells=256, sequences=1, threads=1)
    different = 0
    for text in (*STRANGE_TEXTS, *map(text_of, range(args.transcripts))):
        different += tokenizer.encode(text).ids != llama.tokenize(text)
    print(f"{different} of {args.transcripts + len(STRANGE_TEXTS)} texts have other ids in llama.cpp")
    raise SystemExit(1 if different else 0)


if __name__ == "__main__":
    main()
