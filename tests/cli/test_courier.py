"""`polystem courier run` and `polystem report`, from their arguments to exit codes and what they print."""

from __future__ import annotations

import asyncio
import shlex
import threading
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

import orjson
import pytest

from polystem.cli.main import run
from polystem.harness.record import read_record
from polystem.harness.world import Call, draw_packages
from tests.engine.remote.raw_server import Raw
from tests.harness.courier_server import Body, CourierServer, right_call, said, said_text

QUICK = ["--packages", "2", "--steps", "3", "--prefix-tokens", "1500", "--tool-delay-s", "0:0"]


@contextmanager
def in_background(server: CourierServer) -> Generator[str, None, None]:
    """Runs a server on an event loop of its own, since the command makes one too."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    serving = server.serve()
    try:
        yield asyncio.run_coroutine_threadsafe(serving.__aenter__(), loop).result()
    finally:
        asyncio.run_coroutine_threadsafe(serving.__aexit__(None, None, None), loop).result()
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()


@pytest.fixture
def url() -> Generator[str, None, None]:
    with in_background(CourierServer()) as address:
        yield address


def test_a_whole_run_prints_its_figures_and_exits_with_0(
    url: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "first"
    assert run(["courier", "run", "--base-url", f"{url}/v1", "--arm", "both", "--out", str(out), *QUICK]) == 0
    printed = capsys.readouterr()
    assert "Delivered: pooled 2 of 2; naive 2 of 2." in printed.out
    assert "fewer cells" in printed.out
    assert f"polystem report {out}" in printed.err
    assert read_record(out).manifest.arms == ("pooled", "naive")
    assert read_record(out).manifest.server == "given"


def test_the_figures_come_as_json_too(url: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["courier", "run", "--base-url", url, "--json", "--out", str(tmp_path / "j"), *QUICK]) == 0
    figures = orjson.loads(capsys.readouterr().out)
    assert figures["delivered_all"]
    assert [arm["delivered"] for arm in figures["arms"]] == [2]
    assert figures["arms"][0]["step_zero"]["agents"] == 2


def test_a_run_that_drops_a_package_exits_with_1(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with in_background(CourierServer(chat=lambda _body, _number: said_text("no"))) as url:
        assert run(["courier", "run", "--base-url", url, "--out", str(tmp_path / "d"), *QUICK]) == 1
    assert "Not all delivered: pooled 0 of 2 (dropped: loop 2)." in capsys.readouterr().out


def test_a_number_of_another_package_fails_the_run_loudly(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    mine, other = draw_packages(0, 2, 3)
    stolen = said(Call("collect", {"package_id": other.package_id}))

    def once_crossed(body: Body, _number: int) -> Raw:
        first_turn = len(body["messages"]) == 2
        return (
            stolen
            if first_turn and mine.package_id in body["messages"][1]["content"]
            else said(right_call(body["messages"]))
        )

    out = tmp_path / "crossed"
    with in_background(CourierServer(chat=once_crossed)) as url:
        assert run(["courier", "run", "--base-url", url, "--out", str(out), *QUICK]) == 6
    printed = capsys.readouterr()
    assert "FAILED by cross-talk, delivered: pooled 1 of 2 (dropped: cross_talk 1)." in printed.out
    told = printed.err
    assert f"CROSS-TALK: arm pooled, package 0 ({mine.package_id}), turn 1, step 1" in told
    assert f"that belongs to package 1 ({other.package_id})" in told
    assert f"asked collect(package_id={mine.package_id}), came collect" in told
    assert run(["report", str(out)]) == 0
    whose = f"package 0 ({mine.package_id}) came with the package id of package 1 ({other.package_id})"
    assert f"<h1>FAILED by cross-talk: {whose} (arm pooled, turn 1).</h1>" in (out / "report.html").read_text()


def test_a_dropped_package_is_told_with_its_turn_and_what_came(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with in_background(CourierServer(chat=lambda _body, _number: said_text("no"))) as url:
        assert run(["courier", "run", "--base-url", url, "--out", str(tmp_path / "d"), *QUICK]) == 1
    (mine, _) = draw_packages(0, 2, 3)
    assert (
        f"dropped: arm pooled, package 0 ({mine.package_id}), loop in turn 3, after 0 of 3 steps: "
        f"asked collect(package_id={mine.package_id}), came no tool call in 'no'"
    ) in capsys.readouterr().err


def test_a_record_is_not_overwritten_unasked(url: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["courier", "run", "--base-url", url, "--out", str(tmp_path), *QUICK]
    assert run(arguments) == 0
    assert run(arguments) == 2
    assert "holds a record already\nhint: name another folder, or add --overwrite" in capsys.readouterr().err
    assert run([*arguments, "--overwrite"]) == 0


def repeated(url: str, folder: Path, repeats: int, *more: str) -> int:
    """The exit code of so many repeats into a folder."""
    return run(["courier", "run", "--base-url", url, "--out", str(folder), "--repeats", str(repeats), *QUICK, *more])


def shown(folder: Path, capsys: pytest.CaptureFixture[str]) -> str:
    """The summary of what a report of the folder is about."""
    capsys.readouterr()
    assert run(["report", str(folder)]) == 0
    return (folder / "report.md").read_text("utf-8")


def test_repeats_do_not_hide_behind_an_earlier_run_nor_a_run_among_earlier_repeats(
    url: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert repeated(url, tmp_path, 1) == 0
    assert repeated(url, tmp_path, 2) == 2
    assert f"error: {tmp_path} holds a record already\nhint: name another folder" in capsys.readouterr().err
    assert repeated(url, tmp_path, 2, "--overwrite") == 0
    assert "Delivered in 2 repeats: pooled 4 of 4." in shown(tmp_path, capsys)
    assert repeated(url, tmp_path, 1) == 2
    assert f"error: {tmp_path / 'repeat-0'} holds a record already" in capsys.readouterr().err
    assert repeated(url, tmp_path, 1, "--overwrite") == 0
    assert "Delivered: pooled 2 of 2." in shown(tmp_path, capsys)
    assert not list(tmp_path.glob("repeat-*/*.json*"))


def test_fewer_repeats_leave_none_of_more(url: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert repeated(url, tmp_path, 3) == 0
    (tmp_path / "repeat-0" / "manifest.json").unlink()
    assert repeated(url, tmp_path, 1) == 2, "the others are there"
    assert repeated(url, tmp_path, 2, "--overwrite") == 0
    assert "Delivered in 2 repeats: pooled 4 of 4." in shown(tmp_path, capsys)


@pytest.mark.parametrize("name", ["sweep.json", "matrix.json", "compare.json"])
def test_a_run_is_not_put_where_a_report_would_be_of_something_else(
    url: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    (tmp_path / name).write_text("{}")
    assert repeated(url, tmp_path, 1, "--overwrite") == 2
    assert "which a report would show instead\nhint: name another folder" in capsys.readouterr().err
    assert (tmp_path / name).exists()


def test_what_comes_next_is_told_as_a_shell_takes_it(
    url: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "two arms"
    assert repeated(url, folder, 2, "--arm", "both") == 0
    whole, sides = (line.split(": ", 1)[1] for line in capsys.readouterr().err.splitlines()[-2:])
    assert shlex.split(whole) == ["polystem", "report", str(folder)]
    assert shlex.split(sides) == ["polystem", "courier", "compare", f"{folder}:pooled", f"{folder}:naive"]


def test_a_run_that_cannot_begin_leaves_no_older_figures(
    url: str, free_port: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["courier", "run", "--out", str(tmp_path), *QUICK]
    assert run([*arguments, "--base-url", url]) == 0
    assert run([*arguments, "--base-url", f"http://127.0.0.1:{free_port}", "--overwrite"]) == 5
    assert run(["report", str(tmp_path)]) == 1


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["--packages", "0"], "packages is 0; it must be at least 1"),
        (["--steps", "1"], "steps is 1; it must be at least 2"),
        (["--tool-delay-s", "slow"], "--tool-delay-s is 'slow'; write LOW:HIGH"),
        (["--tool-delay-s", "pareto:0:1"], "--tool-delay-s is 'pareto:0:1'; write pareto:LEAST:ALPHA"),
        (["--arm", "pooled-static"], "arm is 'pooled-static'; it must be one of pooled, pooled-nogate"),
        (["--arm", "legacy-gate"], "the arm legacy-gate lets workers in by a floor, but there is none"),
        (
            ["--floor-tps", "0"],
            "floor_tps is 0; it must be a number more than 0\nhint: leave it out for no floor",
        ),
        (["--arrivals", "poisson:0"], "--arrivals is 'poisson:0'; write burst, poisson:RATE"),
        (["--arrivals", "closed:2", "--concurrency", "3"], "--concurrency changes nothing with --arrivals closed:2"),
        (["--foreign", "0@3"], "--foreign is '0@3'; write STREAMS"),
        (["--growth", "5"], "--growth changes nothing in mode model"),
        (["--mode", "replay", "--growth", "0.5"], "growth is 0.5; it must be at least 1"),
        (["--turn-tokens", "9:3"], "turn_tokens is 9:3; it must be LOW:HIGH"),
        (["--turn-limit-s", "0"], "turn_limit_s is 0; it must be a number more than 0"),
        (["--turn-limit-s", "nan"], "turn_limit_s is nan; it must be a number more than 0"),
        (["--retry-limit-s", "nan"], "retry_limit_s is nan; it must be at least 0"),
        (["--tool-delay-s", "nan"], "--tool-delay-s is 'nan'; its numbers must be finite"),
        (
            ["--order-tokens", "9"],
            "--order-tokens changes nothing in mode model\nhint: leave it out, or add --mode replay",
        ),
        (["--mode", "replay", "--max-errors", "9"], "--max-errors changes nothing in mode replay"),
        (["--threads", "1"], "--threads is for a server that is started, but --base-url names one that is there"),
        (["--packages", "50001"], "50001 packages need more numbers than 5 digits give"),
    ],
)
def test_a_setting_out_of_range_is_named(
    url: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], complaint: str
) -> None:
    assert run(["courier", "run", "--base-url", url, "--out", str(tmp_path / "x"), *arguments]) == 2
    assert f"error: {complaint}" in capsys.readouterr().err


def test_arms_with_sessions_are_refused_by_a_plain_server(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with in_background(CourierServer(pools=False)) as url:
        assert run(["courier", "run", "--base-url", url, "--out", str(tmp_path / "p"), *QUICK]) == 2
        assert "hint: use --arm plain, or a polystem server" in capsys.readouterr().err
        arguments = ["--arm", "plain", "--prefix-tokens", "600"]
        assert run(["courier", "run", "--base-url", url, "--out", str(tmp_path / "n"), *QUICK, *arguments]) == 0


def test_a_server_that_is_not_there_is_told(free_port: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    url = f"http://127.0.0.1:{free_port}"
    assert run(["courier", "run", "--base-url", url, "--out", str(tmp_path / "x"), *QUICK]) == 5
    told = capsys.readouterr().err
    assert f"error: cannot connect to {url}: Connection refused\nhint: " in told
    assert "`polystem serve`, or name the one to ask with --base-url URL" in told


def test_a_server_that_cannot_start_says_why(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    missing = tmp_path / "missing.gguf"
    assert run(["courier", "run", "--model", str(missing), "--out", str(tmp_path / "x"), *QUICK]) == 1
    told = capsys.readouterr().err
    assert "polystem serve ended with exit code" in told
    assert "missing.gguf" in told
    assert f"hint: read {tmp_path / 'x' / 'server-pooled.log'}" in told


def test_a_report_is_written_and_its_path_printed(url: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run(["courier", "run", "--base-url", url, "--out", str(tmp_path / "r"), *QUICK])
    capsys.readouterr()
    assert run(["report", str(tmp_path / "r")]) == 0
    assert capsys.readouterr().out == f"{tmp_path / 'r' / 'report.html'}\n"
    page = tmp_path / "page.html"
    assert run(["report", str(tmp_path / "r"), "--out", str(page)]) == 0
    assert page.read_text("utf-8").startswith("<!doctype html>")


def test_a_report_of_nothing_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["report", str(tmp_path)]) == 1
    assert "manifest.json: No such file" in capsys.readouterr().err


@pytest.mark.native
@pytest.mark.parametrize(("mode", "lengths"), [("model", []), ("replay", ["--turn-tokens", "8:8"])])
def test_the_bundled_model_delivers_in_both_arms_on_a_server_of_its_own(
    mode: str, lengths: list[str], bundled_model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / mode
    # The tools take two sampling periods, so that samples see the agents at work.
    arguments = ["--packages", "2", "--steps", "3", "--prefix-tokens", "600", "--tool-delay-s", "0.5:0.5"]
    more = ["--threads", "1", "--model", str(bundled_model), *lengths]
    assert run(["courier", "run", "--mode", mode, "--arm", "both", "--json", "--out", str(out), *arguments, *more]) == 0
    pooled, naive = orjson.loads(capsys.readouterr().out)["arms"]
    assert (pooled["delivered"], naive["delivered"], pooled["lost"], naive["lost"]) == (2, 2, 0, 0)
    assert pooled["cells"]["add_up"]
    assert naive["cells"]["add_up"]
    zero = pooled["step_zero"]
    assert zero["used_tokens"] == read_record(out).manifest.prefix_tokens + 2 * zero["private_tokens_mean"]
    assert pooled["reduction_at_step_zero"] > 1.8
    assert naive["reduction_at_step_zero"] == 1.0
