"""What the embedded engine is told: model file, cells, sequences, threads, attention, process or thread.

Knows no default of the command line and no file format. A `LlamaSettings` that exists is in range.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal, TypeAlias

from polystem.engine.machine import this_machine
from polystem.errors import ConfigError

SEQUENCES_LIMIT = 256
CACHE_TYPES = ("f32", "f16", "bf16", "q8_0", "q4_0")
CacheType: TypeAlias = Literal["f32", "f16", "bf16", "q8_0", "q4_0"]


@dataclass(frozen=True, slots=True)
class LlamaSettings:
    """Settings of one embedded engine.

    `cells` bounds the KV cells of all branches together, `context_tokens` one request (None: what the model was
    trained on, at most `cells`). `sequences` counts pools plus sessions. `prefill_chunk_tokens` bounds the prompt
    tokens of one step while nothing decodes. `chat_template` and `tool_format` overrule what the file says.
    `close_gaps` moves cells down into free ones, so that steps read no more cells than are in use, or little more.
    `self_check` recounts all cells after each step and ends the engine where the count differs.

    Elsewhere None means what `polystem tune` measured here, or else: `threads` by the number of cores,
    `flash_attention` as llama.cpp chooses, `micro_batch_tokens` 512, `repack` as the probe finds, both cache types
    f16, `gpu_layers` as the library does by default.
    """

    model_path: Path
    model_name: str | None = None
    cells: int = 8192
    sequences: int = 64
    context_tokens: int | None = None
    threads: int | None = None
    threads_batch: int | None = None
    flash_attention: bool | None = None
    micro_batch_tokens: int | None = None
    repack: bool | None = None
    cache_type_k: CacheType | None = None
    cache_type_v: CacheType | None = None
    gpu_layers: int | None = None
    process: Literal["child", "thread"] = "child"
    prefill_chunk_tokens: int = 512
    chat_template: str | None = None
    tool_format: str | None = None
    close_gaps: bool = True
    self_check: bool = False

    def __post_init__(self) -> None:
        self._check_range("cells", 16, 1 << 26)
        self._check_range("sequences", 1, SEQUENCES_LIMIT)
        self._check_range("micro_batch_tokens", 32, 8192)
        self._check_range("prefill_chunk_tokens", 1, 8192)
        self._check_range("threads", 1, 512)
        self._check_range("threads_batch", 1, 512)
        self._check_range("context_tokens", 1, self.cells)
        self._check_cache_types()

    def _check_range(self, name: str, low: int, high: int) -> None:
        value: int | None = getattr(self, name)
        if value is not None and not low <= value <= high:
            raise ConfigError(f"engine setting '{name}' is {value}; it must be between {low} and {high}", param=name)

    def _check_cache_types(self) -> None:
        for name in ("cache_type_k", "cache_type_v"):
            value: str | None = getattr(self, name)
            if value is not None and value not in CACHE_TYPES:
                raise ConfigError(f"engine setting '{name}' is '{value}'; it must be one of {', '.join(CACHE_TYPES)}")
        if self.cache_type_v in ("q8_0", "q4_0") and self.flash_attention is False:
            raise ConfigError(
                f"cache_type_v '{self.cache_type_v}' needs flash attention; turn flash attention on or choose f16"
            )

    @property
    def spare_sequences(self) -> tuple[int, ...]:
        """A sequence id of its own through which cells are moved, where llama.cpp has one left."""
        return (self.sequences,) if self.close_gaps and self.sequences < SEQUENCES_LIMIT else ()

    @property
    def name(self) -> str:
        """The model name on the wire."""
        return self.model_name or self.model_path.stem

    @property
    def decode_threads(self) -> int:
        """Threads of a stream that decodes alone. They spin, so larger machines keep one core free for the server."""
        if self.threads is not None:
            return self.threads
        cores = this_machine().usable_cores
        return cores if cores <= 4 else cores - 1

    @property
    def prefill_threads(self) -> int:
        """Threads of a pass over more than one token: a prefill, or several streams that decode together."""
        return self.threads_batch or self.decode_threads

    @property
    def native_batch_tokens(self) -> int:
        """Tokens that one pass through the kernels takes."""
        return self.micro_batch_tokens or 512

    @property
    def k_type(self) -> CacheType:
        """How keys are stored."""
        return self.cache_type_k or "f16"

    @property
    def v_type(self) -> CacheType:
        """How values are stored."""
        return self.cache_type_v or "f16"

    def for_people(self) -> dict[str, str | int | float | bool | None]:
        """All settings with the values in force, for records."""
        return asdict(self) | {
            "model_path": str(self.model_path),
            "model_name": self.name,
            "threads": self.decode_threads,
            "threads_batch": self.prefill_threads,
            "micro_batch_tokens": self.native_batch_tokens,
            "cache_type_k": self.k_type,
            "cache_type_v": self.v_type,
        }
