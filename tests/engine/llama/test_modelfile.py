"""Hashes of model files are found out once for each content."""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path

import pytest

from polystem.engine.llama.modelfile import read_json, sha256_of, write_json
from polystem.errors import ModelFileError


def test_a_hash_is_that_of_the_content(tmp_path: Path) -> None:
    model = tmp_path / "m.gguf"
    model.write_bytes(b"weights")
    assert sha256_of(model, cache=tmp_path / "cache") == hashlib.sha256(b"weights").hexdigest()


def test_a_hash_is_remembered_until_the_file_changes(tmp_path: Path) -> None:
    model, cache = tmp_path / "m.gguf", tmp_path / "cache"
    model.write_bytes(b"weights")
    sha256_of(model, cache=cache)
    store = cache / "model-hashes.json"
    store.write_text(json.dumps(dict.fromkeys(json.loads(store.read_text()), "remembered")))
    assert sha256_of(model, cache=cache) == "remembered"
    os.utime(model, ns=(1, 1))
    assert sha256_of(model, cache=cache) == hashlib.sha256(b"weights").hexdigest()


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(ModelFileError, match=r"absent\.gguf: No such file"):
        sha256_of(tmp_path / "absent.gguf", cache=tmp_path)


def test_a_cache_that_cannot_be_written_is_no_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    write_json(tmp_path / "file" / "cache.json", {"a": 1})
    assert read_json(tmp_path / "file" / "cache.json") == {}


def test_a_cache_that_is_no_object_is_empty(tmp_path: Path) -> None:
    (tmp_path / "cache.json").write_text("[1]")
    assert read_json(tmp_path / "cache.json") == {}
