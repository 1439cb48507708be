"""What the embedded engine is told: model file, cells, sequences, threads, attention, process or thread.

Knows no default of the command line and no file format. A `LlamaSettings` that exists is in range.
"""

from __future__ import annotations

import os
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal, TypeAlias

from polystem.errors import ConfigError

SEQUENCES_LIMIT = 256
CACHE_TYPES = ("f32", "f16", "bf16", "q8_0", "q4_0")
CacheType: TypeAlias = Literal["f32", "f16", "bf16", "q8_0", "q4_0"]


@dataclass(frozen=True, slots=True)
class LlamaSettings:
    """Settings of one embedded engine.

    `cells` bounds the KV cells of all branches together, `context_tokens` one request (None: what the model was trained
    on, at most `cells`). `sequences` counts pools plus sessions. None means: `threads` by the number of cores,
    `flash_attention` as llama.cpp chooses, `repack` as the probe finds, `gpu_layers` as the library does by default.
    `prefill_chunk_tokens` bounds the prompt tokens of one step while nothing decodes. `chat_template` and
    `tool_format` overrule what the file says. `self_check` recounts all cells after each step and ends the engine
    where the count differs.
    """

    model_path: Path
    model_name: str | None = None
    cells: int = 8192
    sequences: int = 64
    context_tokens: int | None = None
    threads: int | None = None
    threads_batch: int | None = None
    flash_attention: bool | None = None
    micro_batch_tokens: int = 512
    repack: bool | None = None
    cache_type_k: CacheType = "f16"
    cache_type_v: CacheType = "f16"
    gpu_layers: int | None = None
    process: Literal["child", "thread"] = "child"
    prefill_chunk_tokens: int = 512
    chat_template: str | None = None
    tool_format: str | None = None
    self_check: bool = False

    def __post_init__(self) -> None:
        self._check_range("cells", 16, 1 << 26)
        self._check_range("sequences", 1, SEQUENCES_LIMIT)
        self._check_range("micro_batch_tokens", 32, 8192)
        self._check_range("prefill_chunk_tokens", 1, 8192)
        if self.threads is not None:
            self._check_range("threads", 1, 512)
        if self.threads_batch is not None:
            self._check_range("threads_batch", 1, 512)
        if self.context_tokens is not None:
            self._check_range("context_tokens", 1, self.cells)
        self._check_cache_types()

    def _check_range(self, name: str, low: int, high: int) -> None:
        value: int = getattr(self, name)
        if not low <= value <= high:
            raise ConfigError(f"engine setting '{name}' is {value}; it must be between {low} and {high}", param=name)

    def _check_cache_types(self) -> None:
        for name in ("cache_type_k", "cache_type_v"):
            value: str = getattr(self, name)
            if value not in CACHE_TYPES:
                raise ConfigError(f"engine setting '{name}' is '{value}'; it must be one of {', '.join(CACHE_TYPES)}")
        if self.cache_type_v in ("q8_0", "q4_0") and self.flash_attention is False:
            raise ConfigError(
                f"cache_type_v '{self.cache_type_v}' needs flash attention; turn flash attention on or choose f16"
            )

    @property
    def name(self) -> str:
        """The model name on the wire."""
        return self.model_name or self.model_path.stem

    @property
    def decode_threads(self) -> int:
        """Threads of a decode step. OpenMP threads spin, so larger machines keep one core free for the server."""
        if self.threads is not None:
            return self.threads
        cores = usable_cores()
        return cores if cores <= 4 else cores - 1

    @property
    def prefill_threads(self) -> int:
        """Threads of a step that prefills."""
        return self.threads_batch or self.decode_threads

    def for_people(self) -> dict[str, str | int | float | bool | None]:
        """All settings with the values in force, for records."""
        plain = asdict(self)
        plain["model_path"] = str(self.model_path)
        plain["model_name"] = self.name
        plain["threads"] = self.decode_threads
        plain["threads_batch"] = self.prefill_threads
        return plain


def usable_cores() -> int:
    """Cores that this process may run on."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
