"""`polystem courier matrix`, from its arguments to exit codes and what it prints and writes."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import ClassVar, Literal

import orjson
import pytest

from polystem.cli import courier_matrix
from polystem.cli.courier_matrix import exit_code
from polystem.cli.main import run
from polystem.clock import Clock
from polystem.engine.remote import RemoteClient
from polystem.harness.arm_servers import ServedArm
from polystem.harness.arms import ArmPlan
from polystem.harness.matrix_record import read_matrix, write_matrix
from polystem.harness.record import RecordWriter, write_manifest
from tests.harness.courier_server import CourierServer, said_text
from tests.harness.matrices import MATRIX, VERDICT, with_cells, with_verdicts
from tests.harness.records import MANIFEST, ROWS, TOOL

QUICK = [
    "--packages", "4", "--steps", "2", "--prefix-tokens", "1500", "--tool-delay-s", "0:0", "--concurrency", "2",
    "--threads", "1",
]  # fmt: skip


class PlayedServers:
    """In place of the servers that the command starts: one that does the job with F16, and talks with any other."""

    kind: Literal["own", "given"] = "own"
    told: ClassVar[list[list[str]]] = []

    def __init__(self, arguments: list[str], *, folder: Path, clock: Clock) -> None:
        assert folder.is_dir()
        assert clock.now_s() > 0
        self.told.append(arguments)
        self._model = arguments[arguments.index("--model") + 1]

    @asynccontextmanager
    async def serving(self, arm: ArmPlan, floor_tps: float | None) -> AsyncGenerator[ServedArm, None]:
        server = (
            CourierServer()
            if self._model.endswith("f16.gguf")
            else CourierServer(chat=lambda _body, _number: said_text("hm"))
        )
        async with server.serve() as url, RemoteClient(url) as client:
            yield ServedArm(client, "none", floor_tps, arm.workers)


@pytest.mark.native
def test_a_quant_that_cannot_do_the_job_is_told_with_its_cause(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(courier_matrix, "OwnServers", PlayedServers)
    out = tmp_path / "m"
    arguments = ["courier", "matrix", "--quants", "F16,TQ1_0", "--replays", "1", "--watch", "--out", str(out), *QUICK]
    assert run(arguments) == 1
    printed = capsys.readouterr()
    assert "4 of 4 (" in printed.out
    assert "0 of 4 (" in printed.out
    assert "COLLAPSED" in printed.out
    assert ", slowest -, no floor; " in printed.err, "the fleet is watched"
    assert "cell 2 of 2: TQ1_0, 2 at a time" in printed.err
    assert "asking 1 failing turns of TQ1_0 again, alone" in printed.err
    matrix = read_matrix(out)
    assert [each.because for each in matrix.replays] == ["quant"]
    assert matrix.not_replayed == 3
    assert (out / "matrix.md").read_text().startswith("# F16, TQ1_0 at 2 at a time\n")
    assert f"see it with: polystem report {out}" in printed.err
    card = (out / "matrix.md").read_text()
    assert run(["report", str(out)]) == 0
    assert capsys.readouterr().out == f"{out / 'matrix.html'}\n"
    assert "<h1>Worse than F16: TQ1_0 is COLLAPSED at 2.</h1>" in (out / "matrix.html").read_text()
    assert (out / "matrix.md").read_text() == card, "the card is the same, whoever writes it"
    (made,) = (tmp_path / "cache" / "polystem" / "models").iterdir()
    assert made.name.startswith("courier-nano-f16-TQ1_0-"), "F16 is the bundled file itself"
    cells = {each[each.index("--cells") + 1] for each in PlayedServers.told}
    assert len(PlayedServers.told) == 4
    assert len(cells) == 1, "every server has as many cells, also one for a turn alone"
    assert run([*arguments, "--json"]) == 1
    assert orjson.loads(capsys.readouterr().out)["finished"] is True
    assert len(PlayedServers.told) == 4, "what is there is not run again"


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["--quants", "F16,Q9"], "weight type 'Q9' does not exist"),
        (["--quants", "F16,F16"], "names F16 twice; to see the noise of one quant add --again"),
        (["--quants", "F16,a b=x"], "--quants has 'a b=x'"),
        (["--quants", "F16,x="], "--quants has 'x='"),
        (["--quants", "F16,x=/nowhere.gguf"], "gives x the file /nowhere.gguf, which does not exist"),
        (["--quants", "F16"], "nothing to hold it against"),
        (["--concurrency", "1,two"], "--concurrency is '1,two'"),
        (["--concurrency", "8,1"], "concurrency is 8, 1"),
        (["--concurrency", "1,8", "--packages", "4"], "needs as many packages at least, and there are 4"),
        (["--model", "/nowhere.gguf"], "model file '/nowhere.gguf' does not exist"),
        (["--arm", "plain"], "a matrix runs pooled or naive"),
        (["--replays", "-1"], "replays is -1"),
    ],
)
def test_bad_input_is_refused_by_name(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], told: str
) -> None:
    assert run(["courier", "matrix", "--out", str(tmp_path / "m"), *arguments]) == 2
    assert told in " ".join(capsys.readouterr().err.split())
    assert not (tmp_path / "m").exists(), "nothing was begun"


def test_exit_codes_say_cross_talk_before_worse_and_noise_is_no_fault() -> None:
    assert exit_code(MATRIX) == 0
    assert exit_code(with_verdicts(VERDICT, word="DEGRADED")) == 1
    assert exit_code(with_verdicts(VERDICT, word="COLLAPSED")) == 1
    assert exit_code(with_verdicts(VERDICT, word="COLLAPSED", quant="F16 again")) == 0
    assert exit_code(with_cells(crossed=1)) == 6


def test_a_report_of_a_matrix_in_which_a_call_crossed_tells_it_from_the_cells_record(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    crossed = with_cells(crossed=1)
    write_matrix(tmp_path, crossed)
    assert run(["report", str(tmp_path)]) == 0, "also where the record is gone"
    assert "FAILED by cross-talk: calls named" in (tmp_path / "matrix.html").read_text()
    folder = tmp_path / crossed.cells[0].folder
    folder.mkdir()
    write_manifest(folder, MANIFEST)
    with RecordWriter(folder) as record:
        for row in (*ROWS, replace(TOOL, ok=False, cause="cross_talk", other_package=1)):
            record.write(row)
    page = tmp_path / "elsewhere.html"
    assert run(["report", str(tmp_path), "--out", str(page)]) == 0
    assert "FAILED by cross-talk: package 0 (12345) came with" in page.read_text()
    assert capsys.readouterr().out.splitlines() == [str(tmp_path / "matrix.html"), str(page)]
