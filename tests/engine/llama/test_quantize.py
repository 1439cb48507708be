"""Smaller files of a model, made by llama.cpp's quantiser."""

from __future__ import annotations

from pathlib import Path

import pytest

from polystem.engine.llama import quantize as quantizing
from polystem.engine.llama.native import NativeModel
from polystem.engine.llama.quantize import FILE_TYPE_IDS, quantized
from polystem.errors import ConfigError, ModelFileError

pytestmark = pytest.mark.native


@pytest.mark.parametrize("name", sorted(FILE_TYPE_IDS))
def test_each_type_makes_a_model_that_loads(name: str, bundled_model: Path, tmp_path: Path) -> None:
    target = quantized(bundled_model, name, tmp_path / "out.gguf")
    assert name == "F16" or target.stat().st_size < bundled_model.stat().st_size
    model = NativeModel(target, repack=False)
    assert model.metadata("general.file_type") == str(FILE_TYPE_IDS[name])
    model.close()
    assert [path.name for path in tmp_path.iterdir()] == ["out.gguf"]


def test_an_unknown_type_is_refused_with_those_that_exist(bundled_model: Path) -> None:
    with pytest.raises(ConfigError, match=r"'Q9' does not exist; choose one of F16, Q8_0"):
        quantized(bundled_model, "Q9")


def test_the_source_is_never_overwritten(bundled_model: Path) -> None:
    with pytest.raises(ConfigError, match="is the source itself"):
        quantized(bundled_model, "Q8_0", bundled_model)


def test_a_quantised_source_is_refused_and_leaves_no_file(bundled_model: Path, tmp_path: Path) -> None:
    small = quantized(bundled_model, "Q8_0", tmp_path / "small.gguf")
    with pytest.raises(ModelFileError) as caught:
        quantized(small, "Q4_0", tmp_path / "smaller.gguf")
    assert "requantizing" in caught.value.message
    assert caught.value.hint
    assert [path.name for path in tmp_path.iterdir()] == ["small.gguf"]


def test_without_a_target_the_file_is_made_once(
    bundled_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(quantizing, "cache_folder", lambda: tmp_path)
    first = quantized(bundled_model, "q4_0")
    made_at = first.stat().st_mtime_ns
    assert quantized(bundled_model, "Q4_0") == first
    assert first.stat().st_mtime_ns == made_at
    assert first.parent == tmp_path / "models"


def test_a_pure_type_is_taken_for_every_matrix(bundled_model: Path, tmp_path: Path) -> None:
    mixed = quantized(bundled_model, "Q2_K", tmp_path / "mixed.gguf")
    pure = quantized(bundled_model, "Q2_K-pure", tmp_path / "pure.gguf")
    assert pure.stat().st_size < mixed.stat().st_size
    with pytest.raises(ConfigError, match="'Q9-pure' does not exist") as caught:
        quantized(bundled_model, "Q9-pure")
    assert "each may end in -pure" in str(caught.value.hint)


def test_without_a_target_a_source_of_that_type_is_the_answer_itself(
    bundled_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(quantizing, "cache_folder", lambda: tmp_path)
    assert quantized(bundled_model, "f16") == bundled_model
    assert quantized(bundled_model, "F16-pure") != bundled_model
