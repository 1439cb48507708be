"""`polystem courier sweep` and `compare`, from their arguments to exit codes and what they print."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import orjson
import pytest

from polystem.cli.courier_sweep import exit_code
from polystem.cli.main import run
from polystem.harness.record import RecordWriter, read_record, write_manifest
from polystem.harness.sweep_record import Sweep, read_sweep
from polystem.harness.world import Call, draw_packages
from tests.cli.test_courier import in_background
from tests.engine.remote.raw_server import Raw
from tests.harness.courier_server import Body, CourierServer, right_call, said, said_text
from tests.harness.records import MANIFEST, ROWS, TOOL
from tests.report.test_sweep_page import SWEEP

QUICK = ["--packages", "2", "--steps", "3", "--prefix-tokens", "1500", "--tool-delay-s", "0:0"]


def test_a_sweep_names_a_floor_and_can_be_gone_on_with(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    server, out = CourierServer(), tmp_path / "sweep"
    with in_background(server) as url:
        arguments = [
            "courier",
            "sweep",
            "--base-url",
            url,
            "--repeats",
            "2",
            "--out",
            str(out),
            *QUICK,
        ]
        assert run([*arguments, "--floors", "0.5"]) == 0
        printed = capsys.readouterr()
        assert "Sweet spot: 0.5 tokens/s" in printed.out
        assert "kept its floor" in printed.out
        assert "run 2 of 2: floor 0.5 tokens/s, repeat-1" in printed.err
        chats = len(server.chats)
        assert run([*arguments, "--floors", "0.5", "--json"]) == 0
        assert len(server.chats) == chats, "what is there is not run again"
        assert orjson.loads(capsys.readouterr().out)["sweet_spot"]["floor_tps"] == 0.5
        assert run([*arguments, "--floors", "0,0.5"]) in (0, 1), "which of two is faster is the machine's affair"
        assert "of 4: no gate, repeat-1" in capsys.readouterr().err
    assert read_sweep(out).finished
    assert run(["courier", "compare", f"{out}:0.5", f"{out}:0", "--out", str(tmp_path / "c")]) == 0
    printed = capsys.readouterr().out
    assert "pairs are repeats" in printed
    assert "Delivered: A 4 of 4, B 4 of 4; both 4" in printed
    assert (tmp_path / "c" / "compare.json").exists()


def test_a_sweep_is_watched_as_a_run_is(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with in_background(CourierServer(chat=lambda _body, _number: said_text("no"))) as url:
        arguments = ["--base-url", url, "--floors", "0.5", "--repeats", "1", "--out", str(tmp_path / "s"), *QUICK]
        assert run(["courier", "sweep", "--watch", *arguments]) == 1
    told = capsys.readouterr().err
    assert "run 1 of 1: floor 0.5 tokens/s, repeat-0" in told
    assert "pooled 0 s: 0 delivered, 0 dropped of 2; workers " in told
    assert ", slowest -, " in told, "only the watch tells of the slowest agent"


def test_a_sweep_without_a_sweet_spot_says_why(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with in_background(CourierServer(chat=lambda _body, _number: said_text("no"))) as url:
        arguments = ["--base-url", url, "--floors", "0.5", "--repeats", "1", "--out", str(tmp_path / "s"), *QUICK]
        assert run(["courier", "sweep", *arguments]) == 1
    printed = capsys.readouterr().out
    assert "No sweet spot" in printed
    assert "no floor delivered every package in every repeat." in printed


def test_a_sweep_in_which_a_call_crossed_fails_loudly(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    mine, other = draw_packages(0, 2, 3)
    stolen = said(Call("collect", {"package_id": other.package_id}))

    def crossed(body: Body, _number: int) -> Raw:
        """Of the package that is mine the first call names the other one."""
        first = len(body["messages"]) == 2 and mine.package_id in body["messages"][1]["content"]
        return stolen if first else said(right_call(body["messages"]))

    out = tmp_path / "s"
    with in_background(CourierServer(chat=crossed)) as url:
        arguments = ["--base-url", url, "--floors", "0.5", "--repeats", "1", "--out", str(out), *QUICK]
        assert run(["courier", "sweep", *arguments]) == 6
    printed = capsys.readouterr()
    head = "FAILED by cross-talk: calls named what belongs to another package in floor-0.5-repeat-0 (1)."
    words = " ".join(printed.out.split())
    assert words.startswith(f"{head} Contexts were mixed up; trust no other figure. No sweet spot")
    assert f"floor-0.5-repeat-0: CROSS-TALK: arm pooled, package 0 ({mine.package_id}), turn 1, step 1" in printed.err
    assert run(["report", str(out)]) == 0
    assert f"<h1>{head}</h1>" in (out / "report.html").read_text()


@pytest.mark.parametrize(
    ("found", "code"),
    [
        (SWEEP, 0),
        (replace(SWEEP, runs=(replace(SWEEP.runs[0], crossed=1), *SWEEP.runs[1:])), 6),
        (replace(SWEEP, sweet_spot=replace(SWEEP.sweet_spot, floor_tps=None)), 1),
    ],
)
def test_cross_talk_goes_before_a_sweet_spot(found: Sweep, code: int) -> None:
    assert exit_code(found) == code


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["--floors", "five"], "--floors is 'five'; write tokens/s with commas between"),
        (["--floors", "0"], "floors are 0; give each once, one above 0 at least"),
        (["--floors", "5", "--arm", "plain"], "--arm is 'plain'; a sweep sets the floor of the gate"),
        (["--floors", "5", "--repeats", "0"], "repeats is 0; it must be at least 1"),
    ],
)
def test_a_sweep_that_makes_no_sense_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], complaint: str
) -> None:
    assert run(["courier", "sweep", "--out", str(tmp_path / "s"), *arguments]) == 2
    assert f"error: {complaint}" in capsys.readouterr().err
    assert not (tmp_path / "s").exists()


def test_repeats_of_a_run_turn_round_and_are_compared(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "again"
    with in_background(CourierServer()) as url:
        arguments = ["--base-url", url, "--arm", "both", "--repeats", "2", "--out", str(out), *QUICK]
        assert run(["courier", "run", *arguments]) == 0
        told = capsys.readouterr().err
        assert f"see all repeats with: polystem report {out}" in told
        assert f"polystem courier compare {out}:pooled {out}:naive" in told
        assert run(["courier", "run", *arguments]) == 2, "records are there already"
    assert read_record(out / "repeat-0").manifest.arms == ("pooled", "naive")
    assert read_record(out / "repeat-1").manifest.arms == ("naive", "pooled")
    assert run(["courier", "compare", f"{out}:pooled", f"{out}:naive"]) == 0
    assert "pairs are repeats" in capsys.readouterr().out


def test_a_comparison_of_a_run_in_which_a_call_crossed_says_so_first(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, more in (("a", (replace(TOOL, ok=False, cause="cross_talk", other_package=1),)), ("b", ())):
        (tmp_path / name).mkdir()
        write_manifest(tmp_path / name, MANIFEST)
        with RecordWriter(tmp_path / name) as record:
            for row in (*ROWS[:-1], *more, ROWS[-1]):
                record.write(row)
    a, b = str(tmp_path / "a"), str(tmp_path / "b")
    head = f"FAILED by cross-talk: calls named what belongs to another package in B {a} (1)."
    assert run(["courier", "compare", b, a]) == 6
    assert capsys.readouterr().out.startswith(f"{head} Contexts were mixed up; trust no other figure.\n")
    assert run(["courier", "compare", b, b]) == 0
    assert "cross-talk" not in capsys.readouterr().out


def test_runs_that_differ_are_not_compared_unasked(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with in_background(CourierServer()) as url:
        for name, seed in (("a", "1"), ("b", "2")):
            assert (
                run(["courier", "run", "--base-url", url, "--seed", seed, "--out", str(tmp_path / name), *QUICK]) == 0
            )
    capsys.readouterr()
    sides = [str(tmp_path / "a"), str(tmp_path / "b")]
    assert run(["courier", "compare", *sides]) == 2
    told = capsys.readouterr().err
    assert "seed is 1 and 2" in told
    assert "hint: where that is meant, add --allow" in told
    allowed = [word for field in ("seed", "work_sha256", "prefix_tokens") for word in ("--allow", field)]
    assert run(["courier", "compare", *sides, *allowed]) == 0
    assert "Differs, as allowed: seed." in capsys.readouterr().out
