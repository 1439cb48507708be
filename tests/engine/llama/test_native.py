"""What the native door says of files and models that it cannot run."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from polystem.engine.llama import native
from polystem.engine.llama.cells import CellMap
from polystem.engine.llama.native import NO_SLOT, Batch, FloatRows, MemoryKind, NativeContext, NativeModel
from polystem.engine.llama.settings import LlamaSettings
from polystem.errors import ConfigError, EngineBuildError, ModelFileError


@pytest.mark.parametrize(
    ("kind", "says"),
    [
        (MemoryKind(recurrent=True, hybrid=False, window_tokens=0, encoder=False), "recurrent state"),
        (MemoryKind(recurrent=False, hybrid=True, window_tokens=0, encoder=False), "recurrent state"),
        (MemoryKind(recurrent=False, hybrid=False, window_tokens=512, encoder=False), r"sliding-window .*512 tokens"),
        (MemoryKind(recurrent=False, hybrid=False, window_tokens=0, encoder=True), "encoder"),
    ],
)
def test_a_memory_that_cannot_lend_is_refused_with_the_reason(kind: MemoryKind, says: str) -> None:
    with pytest.raises(ModelFileError, match=says) as caught:
        kind.check_lends("mamba")
    assert "mamba" in caught.value.message
    assert caught.value.hint


def test_a_library_that_cannot_be_loaded_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(native, "_failure", "libllama.so: cannot open shared object file")
    with pytest.raises(EngineBuildError, match=r"cannot be loaded: libllama\.so") as caught:
        native.open_library.__wrapped__()
    assert caught.value.hint


@pytest.mark.native
def test_settings_that_llama_cpp_refuses_are_a_config_error(bundled_model: Path) -> None:
    model = NativeModel(bundled_model, repack=False)
    settings = LlamaSettings(bundled_model, cells=256, threads=1, cache_type_v="q8_0", flash_attention=None)
    object.__setattr__(settings, "flash_attention", False)  # past the check, as a newer llama.cpp may refuse more
    with pytest.raises(ConfigError, match=r"llama\.cpp refused the engine settings"):
        NativeContext(model, settings)
    model.close()


@pytest.mark.native
def test_a_plain_cache_lends(bundled_model: Path) -> None:
    model = NativeModel(bundled_model, vocab_only=False, repack=False)
    model.memory_kind().check_lends("nano")
    model.close()


@pytest.mark.native
def test_a_missing_file_and_one_that_is_no_gguf_are_told_apart(tmp_path: Path) -> None:
    with pytest.raises(ModelFileError, match="No such file"):
        NativeModel(tmp_path / "absent.gguf")
    other = tmp_path / "other.gguf"
    other.write_bytes(b"PK\x03\x04")
    with pytest.raises(ModelFileError, match="is not a GGUF file"):
        NativeModel(other)


@pytest.mark.native
def test_a_truncated_model_is_refused_with_what_llama_cpp_said(bundled_model: Path, tmp_path: Path) -> None:
    cut = tmp_path / "cut.gguf"
    cut.write_bytes(bundled_model.read_bytes()[:-5000])
    with pytest.raises(ModelFileError) as caught:
        NativeModel(cut)
    assert "corrupted or incomplete" in caught.value.message


@pytest.mark.native
def test_a_batch_without_room_changes_nothing(bundled_model: Path) -> None:
    settings = LlamaSettings(bundled_model, cells=256, sequences=4, threads=1, repack=False)
    model = NativeModel(bundled_model, repack=False)
    context = NativeContext(model, settings)
    batch = Batch(context.batch_tokens)
    batch.add_chunk([5] * 250, first_position=0, sequence=0, last_wants_logits=False)
    assert context.decode(batch) == 0
    batch.clear()
    batch.add_chunk([5] * 7, first_position=0, sequence=1, last_wants_logits=True)
    assert context.decode(batch) == NO_SLOT
    assert (context.held_tokens(0), context.held_tokens(1)) == (250, 0)
    context.close()
    model.close()


class ToldModel(NativeModel):
    """A model of which only the values of its file are known."""

    def __init__(self, **values: int) -> None:
        self._values = {f"llama.{name.replace('__', '.')}": str(value) for name, value in values.items()}

    def metadata(self, key: str) -> str | None:
        return "llama" if key == "general.architecture" else self._values.get(key)


PLAIN = {"block_count": 28, "embedding_length": 1024, "attention__head_count": 16, "attention__head_count_kv": 8}


def test_a_cell_holds_keys_and_values_of_all_layers() -> None:
    assert ToldModel(**PLAIN).cell_bytes() == 28 * 8 * (64 + 64) * 2
    assert ToldModel(**PLAIN).cell_bytes("q8_0", "f32") == 28 * 8 * (64 * 34 // 32 + 64 * 4)


def test_heads_wider_than_their_part_of_the_width_count_as_they_are() -> None:
    wide = ToldModel(**PLAIN, attention__key_length=128, attention__value_length=96)
    assert wide.cell_bytes() == 28 * 8 * (128 + 96) * 2


def test_a_file_that_does_not_tell_its_shape_has_cells_of_unknown_size() -> None:
    assert ToldModel(block_count=28).cell_bytes() is None


class Paths:
    """A context with its mirror; sequence 0 is a prefix that others can borrow."""

    def __init__(self, path: Path, **settings: Any) -> None:
        self.model = NativeModel(path, repack=False)
        self.context = NativeContext(self.model, LlamaSettings(path, cells=2048, sequences=8, threads=1, **settings))
        self.cells = CellMap(cells_total=2048, physical_cells=self.context.physical_cells)
        self.batch = Batch(self.context.batch_tokens)

    def read(self, sequence: int, tokens: Sequence[int]) -> FloatRows:
        """Logits behind the last of these tokens."""
        self.batch.clear()
        first = self.cells.length(sequence)
        self.batch.add_chunk(tokens, first_position=first, sequence=sequence, last_wants_logits=True)
        assert self.context.decode(self.batch) == 0
        self.cells.place(np.full(len(tokens), sequence, np.int32))
        return self.context.logits(1).copy()

    def lend(self, source: int, target: int, tokens: int) -> None:
        self.context.lend(source, target, tokens)
        self.cells.lend(source, target, tokens)

    def drop(self, sequence: int) -> None:
        self.context.trim(sequence, 0)
        self.cells.trim(sequence, 0)

    def close(self) -> None:
        self.context.close()
        self.model.close()


@pytest.mark.native
@pytest.mark.parametrize("flash_attention", [False, True])
def test_cells_that_moved_say_what_they_said_before(bundled_model: Path, flash_attention: bool) -> None:
    """Private cells and shared ones, with and without flash attention, whose values lie the other way round."""
    random = np.random.default_rng(7)
    filler, prefix, one, two = (random.integers(20, 300, size).tolist() for size in (500, 120, 60, 60))
    moved, still = (Paths(bundled_model, flash_attention=flash_attention) for _ in range(2))
    for paths in (moved, still):
        if paths is moved:
            paths.read(5, filler)
        paths.read(0, prefix)
        for sequence, private in ((1, one), (2, two)):
            paths.lend(0, sequence, len(prefix))
            paths.read(sequence, private)
    moved.drop(5)
    before = moved.cells.cells_read
    while move := moved.cells.plan_move(50):
        moved.context.move(move, 7)
        moved.cells.move(move)
    assert moved.cells.cells_read < before
    for sequence in (1, 2):
        assert moved.context.held_tokens(sequence) == 180
        after, alone = moved.read(sequence, [33, 44]), still.read(sequence, [33, 44])
        assert np.abs(after - alone).max() < 0.1  # the order of a sum over other cells
        assert np.ptp(alone) > 5
    for paths in (moved, still):
        paths.close()
