"""The one door to llama.cpp: models, contexts, batches and the vocabulary, behind plain Python and numpy.

Knows no stream, no branch and no request. Native errors become `ModelFileError` or `EngineBuildError` here; everything
else that can go wrong is a return code that the caller must look at. Callers keep to llama.cpp's rule of one thread a
context; a `Vocabulary` may be used from several.
"""

from __future__ import annotations

import ctypes
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path
from typing import Any, cast

import numpy as np
import numpy.typing as npt

from polystem.engine.llama.cells import Move
from polystem.engine.llama.cuts import TagCuts
from polystem.engine.llama.settings import CacheType, LlamaSettings
from polystem.errors import ConfigError, EngineBuildError, ModelFileError

try:
    import llama_cpp as _package
    from llama_cpp import llama_cpp as _library
except (ImportError, OSError, RuntimeError) as exc:  # a missing or broken native build: told when it is needed
    _library, _package, _failure = cast("Any", None), cast("Any", None), str(exc)
else:
    _failure = ""

# The wheel's own annotations do not survive strict checking; this module is the typed shim around them.
_ll: Any = _library

IntArray = npt.NDArray[np.int32]
FloatRows = npt.NDArray[np.float32]

NO_SLOT = 1
_LOG_LEVEL_ERROR = 4
_LOG_LINES = 40
_CACHE_TYPE_IDS = {"f32": 0, "f16": 1, "q4_0": 2, "q8_0": 8, "bf16": 30}
_ATTR_CONTROL = 1 << 3
_ATTR_USER_DEFINED = 1 << 4
_ATTR_UNKNOWN = 1 << 0
_ATTR_LSTRIP = 1 << 7
_ATTR_RSTRIP = 1 << 8
_LOSSLESS_KINDS = frozenset({1, 2})  # SPM, BPE: the others lower, fold or drop what they read
_TOKENS_AT_ONCE = 1 << 16  # made into a list without a break: about a millisecond


class NativeLog:
    """llama.cpp's log: silent, but the last errors are kept, so that a failed load can say why."""

    def __init__(self) -> None:
        self.errors: deque[str] = deque(maxlen=_LOG_LINES)
        self.debug_lines: deque[str] | None = None
        self._callback = _ll.llama_log_callback(self._take)  # held: the library keeps only the pointer

    def install(self) -> None:
        _ll.llama_log_set(self._callback, None)

    def _take(self, level: int, text: bytes, _data: object) -> None:
        line = text.decode("utf-8", "replace").strip()
        if not line:
            return
        if level >= _LOG_LEVEL_ERROR:
            self.errors.append(line)
        elif self.debug_lines is not None:
            self.debug_lines.append(line)

    def explain(self, fallback: str) -> str:
        """The last error lines, or `fallback` if there are none."""
        return "; ".join(list(self.errors)[-3:]) or fallback


@cache
def open_library() -> NativeLog:
    """Initialises the native library once a process; it has one log, so this returns the one log.

    Raises EngineBuildError where the library is missing or cannot be loaded.
    """
    if _failure:
        raise EngineBuildError(
            f"the native engine library cannot be loaded: {_failure}",
            hint="reinstall llama-cpp-python (it needs a C++ compiler), see docs/quickstart.md",
        )
    log = NativeLog()
    log.install()
    _ll.llama_backend_init()
    return log


def library_path() -> Path:
    """Folder of the native libraries."""
    open_library()
    return Path(_package.__file__).parent / "lib"


def library_build() -> str:
    """Version and CPU features of the native build, for people and records."""
    open_library()
    features = _ll.llama_print_system_info().decode("utf-8", "replace")
    names = [part.split("=")[0].strip() for part in features.replace("CPU :", "").split("|") if "= 1" in part]
    return f"llama-cpp-python {_package.__version__}, {_ggml_version()} ({' '.join(names)})"


def _ggml_version() -> str:
    """Version and commit of the kernels; libraries from before they told it are of an unknown one."""
    told: list[str] = []
    for name in ("ggml_version", "ggml_commit"):
        function = getattr(_ll._lib, name, None)
        if function is None:
            return "ggml of unknown version"
        function.restype = ctypes.c_char_p
        told.append(function().decode("utf-8", "replace"))
    return f"ggml {' '.join(told)}"


@dataclass(frozen=True, slots=True)
class MemoryKind:
    """What the model's memory can do; only a plain KV cache can lend, trim and regrow cells."""

    recurrent: bool
    hybrid: bool
    window_tokens: int
    encoder: bool

    def check_lends(self, model_name: str) -> None:
        """Raises ModelFileError for a memory that cannot drop or lend a part of a sequence."""
        reason = None
        if self.recurrent or self.hybrid:
            reason = "keeps a recurrent state, of which no part can be lent or dropped"
        elif self.window_tokens:
            reason = f"uses sliding-window attention ({self.window_tokens} tokens), whose old cells are overwritten"
        elif self.encoder:
            reason = "has an encoder"
        if reason:
            raise ModelFileError(
                f"model '{model_name}' {reason}; the embedded engine runs models with a plain KV cache only",
                hint="serve this model with llama-server or vLLM and point --base-url at it, or choose another model",
            )


_CACHE_BYTES: dict[CacheType, float] = {"f32": 4.0, "f16": 2.0, "bf16": 2.0, "q8_0": 34 / 32, "q4_0": 18 / 32}
"""Bytes of one value; quantised types hold 32 values and a scale in a block."""


class NativeModel:
    """A loaded GGUF file. Freed by `close`, after every context made from it."""

    def __init__(
        self, path: Path, *, vocab_only: bool = False, repack: bool = True, gpu_layers: int | None = None
    ) -> None:
        log = open_library()
        _check_gguf(path)
        log.errors.clear()
        params = _ll.llama_model_default_params()
        params.vocab_only = vocab_only
        params.use_extra_bufts = repack
        if gpu_layers is not None:
            params.n_gpu_layers = gpu_layers
        self.pointer: Any = _ll.llama_model_load_from_file(str(path).encode(), params)
        if not self.pointer:
            raise ModelFileError(f"cannot load the model {path}: {log.explain('llama.cpp gave no reason')}")
        self.vocabulary = Vocabulary(self.pointer)

    @property
    def context_tokens(self) -> int:
        """The context length the model was trained on. Read from the file: a vocabulary alone does not know it."""
        architecture = self.metadata("general.architecture") or ""
        length = self.metadata(f"{architecture}.context_length")
        if not length or not length.isdecimal():
            raise ModelFileError(f"the model file does not say its context length ({architecture}.context_length)")
        return int(length)

    def metadata(self, key: str) -> str | None:
        """A scalar GGUF value as text."""
        size = _ll.llama_model_meta_val_str(self.pointer, key.encode(), None, 0)
        if size < 0:
            return None
        buffer = ctypes.create_string_buffer(size + 1)
        _ll.llama_model_meta_val_str(self.pointer, key.encode(), buffer, size + 1)
        return buffer.value.decode("utf-8", "replace")

    @property
    def weight_bytes(self) -> int:
        """Size of all tensors."""
        return int(_ll.llama_model_size(self.pointer))

    def cell_bytes(self, k_type: CacheType = "f16", v_type: CacheType = "f16") -> int | None:
        """Memory of one KV cell, all layers together; None where the file does not say enough."""
        kind = self.metadata("general.architecture") or ""
        layers, heads, heads_kv, width, key, value = (
            _whole(self.metadata(f"{kind}.{name}"))
            for name in (
                "block_count", "attention.head_count", "attention.head_count_kv", "embedding_length",
                "attention.key_length", "attention.value_length",
            )
        )  # fmt: skip
        if not (layers and heads and width):
            return None
        head = width // heads
        each = (key or head) * _CACHE_BYTES[k_type] + (value or head) * _CACHE_BYTES[v_type]
        return round(layers * (heads_kv or heads) * each)

    def chat_template(self) -> str:
        """The template in the file, empty if it has none."""
        raw = _ll.llama_model_chat_template(self.pointer, None)
        return raw.decode("utf-8", "replace") if raw else ""

    def memory_kind(self) -> MemoryKind:
        return MemoryKind(
            recurrent=bool(_ll.llama_model_is_recurrent(self.pointer)),
            hybrid=bool(_ll.llama_model_is_hybrid(self.pointer)),
            window_tokens=int(_ll.llama_model_n_swa(self.pointer)),
            encoder=bool(_ll.llama_model_has_encoder(self.pointer)),
        )

    def close(self) -> None:
        if self.pointer:
            _ll.llama_model_free(self.pointer)
            self.pointer = None


def _whole(text: str | None) -> int:
    return int(text) if text and text.isdecimal() else 0


def _check_gguf(path: Path) -> None:
    try:
        with path.open("rb") as file:
            magic = file.read(4)
    except OSError as exc:
        raise ModelFileError(f"cannot read the model file {path}: {exc.strerror or exc}") from exc
    if magic != b"GGUF":
        raise ModelFileError(f"{path} is not a GGUF file (it starts with {magic!r}); convert the model to GGUF first")


class Vocabulary:
    """Text to tokens and back, by the model's own tokenizer."""

    def __init__(self, model_pointer: Any) -> None:
        self._vocab: Any = _ll.llama_model_get_vocab(model_pointer)
        self.size = int(_ll.llama_vocab_n_tokens(self._vocab))
        self._adds_eos = bool(_ll.llama_vocab_get_add_eos(self._vocab))

    def tokenize(self, text: str, *, add_special: bool, parse_special: bool) -> list[int]:
        """Token ids; `add_special` adds what the model wants at the start (bos), `parse_special` reads control tags."""
        if add_special and self._adds_eos:  # what ends a text belongs behind its last piece only
            return self._tokenize(text, add_special, parse_special)
        cuts = self._cuts_at_any_tag if parse_special else self._cuts_at_seen_tags
        tokens: list[int] = []
        for index, piece in enumerate(cuts.pieces(text)):
            tokens += self._tokenize(piece, add_special and not index, parse_special)
        return tokens

    def _tokenize(self, text: str, add_special: bool, parse_special: bool) -> list[int]:
        raw = text.encode("utf-8", "replace")
        room = len(raw) + 8
        while True:
            buffer = (ctypes.c_int32 * room)()
            count = _ll.llama_tokenize(self._vocab, raw, len(raw), buffer, room, add_special, parse_special)
            if count >= 0:
                return self._listed(buffer, count)
            room = -count

    @staticmethod
    def _listed(buffer: Any, count: int) -> list[int]:
        """The first tokens of a buffer, in steps between which other threads can run."""
        tokens: list[int] = []
        for begin in range(0, count, _TOKENS_AT_ONCE):
            tokens += buffer[begin : min(count, begin + _TOKENS_AT_ONCE)]
        return tokens

    def fewest_tokens(self, text: str) -> int:
        """A lower bound of the tokens of a text, found without reading it: no token holds more than the longest one.

        Whitespace counts only where no token of the vocabulary takes any away beside it.
        """
        if not self.longest_token_bytes:
            return 0
        counted = "".join(text.split()) if self._takes_whitespace else text
        return -(-len(counted.encode("utf-8", "replace")) // self.longest_token_bytes)

    @cached_property
    def longest_token_bytes(self) -> int:
        """The bytes of the longest token; 0 where tokens may stand for more text than theirs. Slow the first time."""
        if int(_ll.llama_vocab_type(self._vocab)) not in _LOSSLESS_KINDS:
            return 0
        return max((len(self.piece(token)) for token in range(self.size)), default=0)

    @cached_property
    def _takes_whitespace(self) -> bool:
        strips = _ATTR_LSTRIP | _ATTR_RSTRIP
        return any(int(_ll.llama_vocab_get_attr(self._vocab, token)) & strips for token in range(self.size))

    @cached_property
    def _cuts_at_any_tag(self) -> TagCuts:
        return TagCuts(map(self._tag, self._with_attributes(_ATTR_CONTROL | _ATTR_UNKNOWN | _ATTR_USER_DEFINED)))

    @cached_property
    def _cuts_at_seen_tags(self) -> TagCuts:
        return TagCuts(map(self._tag, self._with_attributes(_ATTR_USER_DEFINED)))

    def _with_attributes(self, wanted: int) -> Iterator[int]:
        """Tokens with one of these attributes, less those that take the whitespace before them away."""
        for token in range(self.size):
            attributes = int(_ll.llama_vocab_get_attr(self._vocab, token))
            if attributes & wanted and not attributes & _ATTR_LSTRIP:
                yield token

    def piece(self, token: int) -> bytes:
        """The bytes a token stands for, control tokens included."""
        room = 64
        while True:
            buffer = ctypes.create_string_buffer(room)
            count = _ll.llama_token_to_piece(self._vocab, token, buffer, room, 0, True)
            if count >= 0:
                return buffer.raw[:count]
            room = -count

    def is_eog(self, token: int) -> bool:
        """Whether the model ends its turn with this token."""
        return bool(_ll.llama_vocab_is_eog(self._vocab, token))

    def is_control(self, token: int) -> bool:
        """Whether a token is a tag that a reader does not see; user-defined tags are seen."""
        attributes = int(_ll.llama_vocab_get_attr(self._vocab, token))
        return bool(attributes & (_ATTR_CONTROL | _ATTR_UNKNOWN)) and not attributes & _ATTR_USER_DEFINED

    def eog_tokens(self) -> list[int]:
        return [token for token in range(self.size) if self.is_eog(token)]

    def control_tokens(self) -> list[int]:
        return [token for token in range(self.size) if self.is_control(token)]

    def bos_text(self) -> str:
        return self._tag(int(_ll.llama_vocab_bos(self._vocab)))

    def eos_text(self) -> str:
        return self._tag(int(_ll.llama_vocab_eos(self._vocab)))

    def adds_bos(self) -> bool:
        return bool(_ll.llama_vocab_get_add_bos(self._vocab))

    def _tag(self, token: int) -> str:
        return self.piece(token).decode("utf-8", "replace") if token >= 0 else ""


class Batch:
    """Rows of one decode call, held in numpy arrays that llama.cpp reads in place.

    Row i is `tokens[i]` at position `positions[i]` of sequence `sequences[i]`; `wants_logits[i]` asks for its logits.
    """

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self.tokens: IntArray = np.zeros(capacity, np.int32)
        self.positions: IntArray = np.zeros(capacity, np.int32)
        self.sequences: IntArray = np.zeros(capacity, np.int32)
        self.wants_logits: npt.NDArray[np.int8] = np.zeros(capacity, np.int8)
        self._sequences_per_row: IntArray = np.ones(capacity, np.int32)
        step = self.sequences.itemsize
        self._row_pointers = (self.sequences.ctypes.data + step * np.arange(capacity)).astype(np.uintp)
        self.rows = 0
        self.struct: Any = self._as_struct()

    def _as_struct(self) -> Any:
        struct = _ll.llama_batch()
        ints = ctypes.POINTER(ctypes.c_int32)
        struct.token = self.tokens.ctypes.data_as(ints)
        struct.pos = self.positions.ctypes.data_as(ints)
        struct.n_seq_id = self._sequences_per_row.ctypes.data_as(ints)
        struct.seq_id = self._row_pointers.ctypes.data_as(ctypes.POINTER(ints))
        struct.logits = self.wants_logits.ctypes.data_as(ctypes.POINTER(ctypes.c_int8))
        return struct

    def clear(self) -> None:
        self.rows = 0

    def add_decodes(self, tokens: Sequence[int], positions: Sequence[int], sequences: Sequence[int]) -> None:
        """One row for each running stream, all with logits."""
        start, self.rows = self.rows, self.rows + len(tokens)
        rows = slice(start, self.rows)
        self.tokens[rows], self.positions[rows], self.sequences[rows] = tokens, positions, sequences
        self.wants_logits[rows] = 1

    def add_chunk(self, tokens: Sequence[int], *, first_position: int, sequence: int, last_wants_logits: bool) -> None:
        """A piece of one prompt."""
        start, self.rows = self.rows, self.rows + len(tokens)
        rows = slice(start, self.rows)
        self.tokens[rows] = tokens
        self.positions[rows] = np.arange(first_position, first_position + len(tokens), dtype=np.int32)
        self.sequences[rows] = sequence
        self.wants_logits[rows] = 0
        if last_wants_logits:
            self.wants_logits[self.rows - 1] = 1


class NativeContext:
    """A context with one unified KV buffer. Not thread-safe: one decode loop owns it."""

    def __init__(self, model: NativeModel, settings: LlamaSettings) -> None:
        self.batch_tokens = max(settings.native_batch_tokens, settings.prefill_chunk_tokens) + settings.sequences
        params = _context_params(settings, self.batch_tokens)
        log = open_library()
        log.errors.clear()
        self.pointer: Any = _ll.llama_init_from_model(model.pointer, params)
        if not self.pointer:
            raise ConfigError(f"llama.cpp refused the engine settings: {log.explain('it gave no reason')}")
        self.vocab_tokens = model.vocabulary.size
        self.physical_cells = int(_ll.llama_n_ctx(self.pointer))
        self.micro_batch_tokens = int(_ll.llama_n_ubatch(self.pointer))
        self._memory: Any = _ll.llama_get_memory(self.pointer)
        self._moved: Any = None  # where cells are while they move, kept for the next ones
        if int(_ll.llama_n_ctx_seq(self.pointer)) != self.physical_cells:
            self.close()
            raise EngineBuildError("llama.cpp split the KV buffer by sequence; shared prefixes need a unified buffer")

    def decode(self, batch: Batch) -> int:
        """Runs a batch; 0 is done, NO_SLOT changed nothing, any other value means that the context is lost."""
        batch.struct.n_tokens = batch.rows
        status = int(_ll.llama_decode(self.pointer, batch.struct))
        if status == 0:
            _ll.llama_synchronize(self.pointer)
        return status

    def set_threads(self, decode: int, prefill: int) -> None:
        """Changes how many threads the next steps run on."""
        _ll.llama_set_n_threads(self.pointer, decode, prefill)

    def logits(self, rows: int) -> FloatRows:
        """A view of the logits of the rows that wanted them, in batch order; valid until the next decode."""
        pointer = _ll.llama_get_logits(self.pointer)
        return np.ctypeslib.as_array(pointer, shape=(rows, self.vocab_tokens))

    def lend(self, source: int, target: int, tokens: int) -> None:
        """Tags the first `tokens` cells of sequence `source` for `target` too; moves nothing."""
        _ll.llama_memory_seq_cp(self._memory, source, target, 0, tokens)

    def relend(self, source: int, target: int, tokens: int) -> None:
        """Tags the first `tokens` cells of `source` for `target`, in place of those that it had there."""
        if not _ll.llama_memory_seq_rm(self._memory, target, 0, tokens):
            raise EngineBuildError(f"this model's memory cannot drop part of a sequence (the first {tokens} tokens)")
        _ll.llama_memory_seq_cp(self._memory, source, target, 0, tokens)

    def trim(self, sequence: int, keep_tokens: int) -> None:
        """Drops all of a sequence from position `keep_tokens` on."""
        if not _ll.llama_memory_seq_rm(self._memory, sequence, keep_tokens, -1):
            raise EngineBuildError(f"this model's memory cannot drop part of a sequence (at {keep_tokens} tokens)")

    def move(self, move: Move, spare: int) -> None:
        """Copies cells out through the empty sequence `spare` and back, which puts them into the lowest free cells.

        Raises EngineBuildError where llama.cpp does not take them back; the context is lost then.
        """
        memory = self._memory
        for span in move.spans:
            _ll.llama_memory_seq_cp(memory, span.sequences[0], spare, span.first, span.last)
        size = int(_ll.llama_state_seq_get_size(self.pointer, spare))
        if self._moved is None or len(self._moved) < size:
            self._moved = (ctypes.c_uint8 * size)()
        written = int(_ll.llama_state_seq_get_data(self.pointer, self._moved, size, spare))
        for span in move.spans:
            for sequence in span.sequences:
                _ll.llama_memory_seq_rm(memory, sequence, span.first, span.last)
        if not written or not _ll.llama_state_seq_set_data(self.pointer, self._moved, written, spare):
            raise EngineBuildError(f"llama.cpp lost {move.cells} cells that were to be moved; the context is lost")
        for span in move.spans:
            for sequence in span.sequences:
                _ll.llama_memory_seq_cp(memory, spare, sequence, span.first, span.last)
        _ll.llama_memory_seq_rm(memory, spare, -1, -1)

    def held_tokens(self, sequence: int) -> int:
        """Positions that llama.cpp itself has for a sequence: what `check_integrity` compares with."""
        return int(_ll.llama_memory_seq_pos_max(self._memory, sequence)) + 1

    def close(self) -> None:
        if self.pointer:
            _ll.llama_free(self.pointer)
            self.pointer = None


def _context_params(settings: LlamaSettings, batch_tokens: int) -> Any:
    params = _ll.llama_context_default_params()
    params.n_ctx = settings.cells
    params.n_batch = batch_tokens
    params.n_ubatch = settings.native_batch_tokens
    params.n_seq_max = settings.sequences + len(settings.spare_sequences)
    params.n_outputs_max = params.n_seq_max
    params.kv_unified = True
    params.n_threads, params.n_threads_batch = settings.decode_threads, settings.prefill_threads
    params.flash_attn_type = -1 if settings.flash_attention is None else int(settings.flash_attention)
    params.type_k = _CACHE_TYPE_IDS[settings.k_type]
    params.type_v = _CACHE_TYPE_IDS[settings.v_type]
    params.no_perf = True
    return params


def quantize(source: Path, target: Path, type_id: int, *, threads: int, pure: bool = False) -> None:
    """Writes `source` to `target` in another weight type, `pure` for every matrix. Raises ModelFileError."""
    log = open_library()
    _check_gguf(source)
    log.errors.clear()
    params = _ll.llama_model_quantize_default_params()
    params.ftype = type_id
    params.nthread = threads
    params.pure = pure
    params.allow_requantize = False
    status = _ll.llama_model_quantize(str(source).encode(), str(target).encode(), ctypes.byref(params))
    if status != 0:
        raise ModelFileError(
            f"cannot quantise {source}: {log.explain(f'llama.cpp returned {status}')}",
            hint="start from an F16, BF16 or F32 file; one that is quantised already cannot be quantised again",
        )
