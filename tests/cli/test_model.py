"""`polystem model`: the path of what was made on stdout."""

from __future__ import annotations

from pathlib import Path

import pytest
import typer

from polystem.cli import model
from polystem.errors import ConfigError


def polystem(*arguments: str) -> None:
    """Runs the command in an application of its own."""
    app = typer.Typer()
    model.register(app)
    app(arguments, standalone_mode=False)


@pytest.mark.native
def test_quantize_prints_the_path(bundled_model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    target = tmp_path / "nano-q8.gguf"
    polystem("model", "quantize", str(bundled_model), "Q8_0", "--out", str(target))
    assert capsys.readouterr().out.strip() == str(target)
    assert target.is_file()


def test_quantize_refuses_a_type_that_does_not_exist(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="weight type 'Q9' does not exist"):
        polystem("model", "quantize", str(tmp_path / "m.gguf"), "Q9")
