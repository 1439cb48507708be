"""The child process: it dies, comes back, is given up, and never outlives its parent."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Literal

import psutil
import pytest

from polystem.engine.llama import LlamaEngine, LlamaSettings
from polystem.engine.protocol import Placement
from polystem.errors import Draining, EngineDied, EngineLost, EngineRestarting
from tests.conformance.cases import ask, greedy
from tests.engine.llama.conftest import Running

pytestmark = [pytest.mark.anyio, pytest.mark.native]


def kill(engine: LlamaEngine) -> int:
    """Ends the child as the kernel does when memory runs out."""
    pid = engine.process_id
    assert pid is not None
    os.kill(pid, signal.SIGKILL)
    return pid


async def test_a_killed_child_fails_its_turns_and_comes_back_empty(running: Running) -> None:
    async with running(process="child") as engine:
        engine.set_prefill_budget(16)
        decoded = (await ask(engine, greedy("abc", max_tokens=5), Placement(1))).usage.output_tokens
        request = greedy("def", max_tokens=900)
        turn = engine.generate(request, await engine.encode(request))
        await anext(turn)
        pid = kill(engine)
        with pytest.raises(EngineDied, match="killed by SIGKILL"):
            async for _ in turn:
                pass
        with pytest.raises(EngineRestarting, match="the engine is restarting"):
            await ask(engine, request)
        assert await engine.wait_restart(1) == 2
        assert engine.process_id != pid
        assert engine.statistics().branch_tokens == {}
        assert (await ask(engine, greedy("abc", max_tokens=5))).usage.cached_tokens == 0
        assert engine.statistics().tokens_decoded >= 2 * (decoded - 1)


async def test_deaths_after_work_are_forgiven_without_end(running: Running) -> None:
    async with running(process="child") as engine:
        for boot in range(1, 4):
            await ask(engine, greedy("abc", max_tokens=2))
            kill(engine)
            assert await engine.wait_restart(boot) == boot + 1


async def test_five_deaths_in_a_row_without_work_are_the_last(running: Running) -> None:
    async with running(process="child") as engine:
        for boot in range(1, 5):
            kill(engine)
            assert await engine.wait_restart(boot) == boot + 1
        kill(engine)
        with pytest.raises(EngineLost, match="5 starts in a row failed, the last with: killed by SIGKILL"):
            await engine.wait_restart(5)
        assert engine.statistics().state == "failed"
        with pytest.raises(EngineLost, match="the engine has given up"):
            await ask(engine, greedy("abc"))


async def test_signals_that_reach_a_whole_group_do_not_end_the_child(running: Running) -> None:
    async with running(process="child") as engine:
        assert engine.process_id is not None
        for number in (signal.SIGINT, signal.SIGTERM):
            os.kill(engine.process_id, number)
        await ask(engine, greedy("abc", max_tokens=3))
        assert engine.statistics().boot == 1


async def test_closing_ends_the_child_and_all_turns(small: LlamaSettings) -> None:
    engine = LlamaEngine(replace(small, process="child"))
    await engine.start()
    pid = engine.process_id
    assert pid is not None
    request = greedy("abc", max_tokens=900)
    turn = engine.generate(request, await engine.encode(request))
    await anext(turn)
    await engine.aclose()
    with pytest.raises(Draining):
        async for _ in turn:
            pass
    assert not psutil.pid_exists(pid)
    await engine.aclose()


@pytest.mark.parametrize("process", ["child", "thread"])
async def test_closing_while_the_model_loads_ends_the_start(
    small: LlamaSettings, process: Literal["child", "thread"]
) -> None:
    engine = LlamaEngine(replace(small, process=process))
    starting = asyncio.create_task(engine.start())
    while engine.statistics().boot == 0:  # noqa: ASYNC110  (an engine tells nobody that it launched a boot)
        await asyncio.sleep(0)
    await engine.aclose()
    with pytest.raises(Draining):
        await starting
    assert engine.process_id is None


async def test_a_child_that_cannot_load_fails_the_start_with_its_reason(small: LlamaSettings, tmp_path: Path) -> None:
    cut = tmp_path / "cut.gguf"
    cut.write_bytes(small.model_path.read_bytes()[:-4096])
    engine = LlamaEngine(replace(small, model_path=cut, process="child"))
    with pytest.raises(Exception, match="corrupted or incomplete"):
        await engine.start()
    assert engine.process_id is None or not psutil.pid_exists(engine.process_id)
    await engine.aclose()


def test_the_child_never_outlives_its_parent(small: LlamaSettings) -> None:
    code = (
        "import asyncio, os, signal, sys\n"
        "from pathlib import Path\n"
        "from polystem.engine.llama import LlamaEngine, LlamaSettings\n"
        "async def main():\n"
        "    engine = LlamaEngine(LlamaSettings(Path(sys.argv[1]), cells=512, threads=1, repack=False))\n"
        "    await engine.start()\n"
        "    print(engine.process_id, flush=True)\n"
        "    os.kill(os.getpid(), signal.SIGKILL)\n"
        "asyncio.run(main())\n"
    )
    parent = subprocess.run(
        [sys.executable, "-c", code, str(small.model_path)], capture_output=True, text=True, check=False
    )
    assert parent.returncode == -signal.SIGKILL, parent.stderr
    assert ends(int(parent.stdout))


def ends(pid: int) -> bool:
    """Whether a process that is not ours ends within some seconds; one that nobody reaps has ended, too."""
    try:
        process = psutil.Process(pid)
        process.wait(timeout=10)
    except psutil.NoSuchProcess:
        return True
    except psutil.TimeoutExpired as late:
        return psutil.Process(late.pid or pid).status() == psutil.STATUS_ZOMBIE
    return True
