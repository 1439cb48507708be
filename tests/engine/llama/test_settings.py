"""Settings out of range are refused with value and limits."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from polystem.engine.llama.settings import LlamaSettings
from polystem.errors import ConfigError

MODEL = Path("models/some-model.gguf")


@pytest.mark.parametrize(
    ("field", "value", "says"),
    [
        ("cells", 1, "'cells' is 1; it must be between 16"),
        ("sequences", 257, "'sequences' is 257; it must be between 1 and 256"),
        ("sequences", 0, "'sequences' is 0"),
        ("threads", 0, "'threads' is 0"),
        ("threads_batch", 0, "'threads_batch' is 0"),
        ("micro_batch_tokens", 8, "'micro_batch_tokens' is 8"),
        ("prefill_chunk_tokens", 0, "'prefill_chunk_tokens' is 0"),
        ("context_tokens", 9000, "'context_tokens' is 9000; it must be between 1 and 8192"),
        ("cache_type_k", "q3", "'cache_type_k' is 'q3'; it must be one of f32, f16"),
    ],
)
def test_a_value_out_of_range_is_refused(field: str, value: Any, says: str) -> None:
    with pytest.raises(ConfigError) as caught:
        LlamaSettings(MODEL, **{field: value})
    assert says in caught.value.message


def test_a_quantised_v_cache_needs_flash_attention() -> None:
    with pytest.raises(ConfigError, match="needs flash attention"):
        LlamaSettings(MODEL, cache_type_v="q8_0", flash_attention=False)
    assert LlamaSettings(MODEL, cache_type_v="q8_0", flash_attention=True).cache_type_v == "q8_0"


def test_the_model_is_named_after_its_file_unless_told_otherwise() -> None:
    assert LlamaSettings(MODEL).name == "some-model"
    assert LlamaSettings(MODEL, model_name="nano").name == "nano"


def test_records_show_the_values_in_force() -> None:
    shown = LlamaSettings(MODEL, threads=3).for_people()
    assert (shown["threads"], shown["threads_batch"], shown["model_path"]) == (3, 3, str(MODEL))
    assert LlamaSettings(MODEL).decode_threads >= 1
