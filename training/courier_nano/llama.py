"""The few calls of llama.cpp that an evaluation needs: load, tokenize, decode several sequences, quantize.

Knows tokens and sequences, no packages. Sequence 0 is the shared prefix; others borrow its cells.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import llama_cpp as ll
import numpy as np

BATCH_TOKENS = 2048
QUANTS = {"Q8_0": ll.LLAMA_FTYPE_MOSTLY_Q8_0, "Q4_0": ll.LLAMA_FTYPE_MOSTLY_Q4_0, "Q2_K": ll.LLAMA_FTYPE_MOSTLY_Q2_K}

_silent = ll.llama_log_callback(lambda level, text, data: None)  # kept here, since llama.cpp holds no reference


@dataclass(frozen=True, slots=True)
class Piece:
    """Tokens to decode at the end of a sequence; the last one's logits are wanted."""

    sequence: int
    at: int
    tokens: Sequence[int]


class Llama:
    """A model file with one context of unified cells."""

    def __init__(self, path: Path, *, cells: int, sequences: int, threads: int) -> None:
        ll.llama_log_set(_silent, None)
        ll.llama_backend_init()
        settings = ll.llama_model_default_params()
        settings.use_extra_bufts = False
        self._model = ll.llama_model_load_from_file(str(path).encode(), settings)
        if not self._model:
            raise OSError(f"{path} does not load as a GGUF model")
        self._vocab = ll.llama_model_get_vocab(self._model)
        self._entries = ll.llama_vocab_n_tokens(self._vocab)
        self._context = ll.llama_init_from_model(self._model, self._settings(cells, sequences, threads))
        self._memory = ll.llama_get_memory(self._context)
        self._batch = ll.llama_batch_init(BATCH_TOKENS, 0, 1)

    @staticmethod
    def _settings(cells: int, sequences: int, threads: int) -> ll.llama_context_params:
        settings = ll.llama_context_default_params()
        settings.n_ctx, settings.n_batch, settings.n_seq_max = cells, BATCH_TOKENS, sequences
        settings.kv_unified, settings.flash_attn_type = True, 0  # on a CPU, several sequences decode faster without
        settings.n_threads = settings.n_threads_batch = threads
        return settings

    def close(self) -> None:
        ll.llama_batch_free(self._batch)
        ll.llama_free(self._context)
        ll.llama_model_free(self._model)

    def tokenize(self, text: str) -> list[int]:
        raw = text.encode()
        room = (ll.llama_token * (len(raw) + 8))()
        count = ll.llama_tokenize(self._vocab, raw, len(raw), room, len(room), False, True)
        assert count >= 0
        return room[:count]

    def text_of(self, token: int) -> str:
        room = ctypes.create_string_buffer(64)
        count = ll.llama_token_to_piece(self._vocab, token, room, len(room), 0, True)
        return room.raw[:count].decode(errors="replace")

    def borrow(self, sequence: int) -> None:
        """Gives a sequence the cells of the prefix, and no others."""
        ll.llama_memory_seq_rm(self._memory, sequence, -1, -1)
        ll.llama_memory_seq_cp(self._memory, 0, sequence, -1, -1)

    def cut(self, sequence: int, at: int) -> None:
        """Forgets the sequence from a position on."""
        ll.llama_memory_seq_rm(self._memory, sequence, at, -1)

    def decode(self, pieces: Sequence[Piece]) -> list[int]:
        """Decodes pieces, at most `BATCH_TOKENS` tokens of each; gives the likeliest next token of each."""
        best: list[int] = []
        group: list[Piece] = []
        for piece in pieces:
            if sum(len(held.tokens) for held in group) + len(piece.tokens) > BATCH_TOKENS:
                best += self._decode(group)
                group = []
            group.append(piece)
        return best + self._decode(group)

    def _decode(self, pieces: Sequence[Piece]) -> list[int]:
        last = self._fill(pieces)
        status = ll.llama_decode(self._context, self._batch)
        if status != 0:
            raise RuntimeError(f"llama_decode returned {status}")
        return [
            int(np.ctypeslib.as_array(ll.llama_get_logits_ith(self._context, row), (self._entries,)).argmax())
            for row in last
        ]

    def _fill(self, pieces: Sequence[Piece]) -> list[int]:
        row, last, batch = 0, [], self._batch
        for piece in pieces:
            for offset, token in enumerate(piece.tokens):
                batch.token[row], batch.pos[row] = token, piece.at + offset
                batch.n_seq_id[row], batch.seq_id[row][0] = 1, piece.sequence
                batch.logits[row] = offset == len(piece.tokens) - 1
                row += 1
            last.append(row - 1)
        batch.n_tokens = row
        return last


def quantize(source: Path, target: Path, quant: str) -> None:
    """Writes a model file in a coarser quant."""
    settings = ll.llama_model_quantize_default_params()
    settings.ftype, settings.nthread = QUANTS[quant], 2
    ll.llama_log_set(_silent, None)
    status = ll.llama_model_quantize(str(source).encode(), str(target).encode(), ctypes.byref(settings))
    if status != 0:
        raise RuntimeError(f"{source} did not quantize to {quant}: status {status}")
