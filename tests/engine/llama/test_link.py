"""What a child process is given by its parent."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Callable

import psutil
import pytest

from polystem.engine.llama.link import child_environment
from tests.engine.llama.conftest import Running


@pytest.fixture(autouse=True)
def nothing_told(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("GOMP_SPINCOUNT", "OMP_WAIT_POLICY"):
        monkeypatch.delenv(name, raising=False)


@pytest.mark.native
@pytest.mark.anyio
async def test_the_threads_of_a_child_spin_for_a_short_while(running: Running) -> None:
    async with running(process="child") as engine:
        assert engine.process_id is not None
        assert psutil.Process(engine.process_id).environ()["GOMP_SPINCOUNT"] == "2000"


@pytest.mark.parametrize(("name", "told"), [("GOMP_SPINCOUNT", "7"), ("OMP_WAIT_POLICY", "active")])
def test_what_the_user_says_of_waiting_stands(monkeypatch: pytest.MonkeyPatch, name: str, told: str) -> None:
    monkeypatch.setenv(name, told)
    found = {key: value for key, value in child_environment().items() if key in ("GOMP_SPINCOUNT", "OMP_WAIT_POLICY")}
    assert found == {name: told}


@pytest.mark.native
@pytest.mark.anyio
async def test_an_engine_that_ends_is_noticed_even_where_its_socket_says_nothing(
    running: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    loop, heard = asyncio.get_running_loop(), list[int]()
    add_reader = loop.add_reader

    def listening(fd: int, callback: Callable[[], None]) -> None:
        heard.append(fd)
        add_reader(fd, callback)

    monkeypatch.setattr(loop, "add_reader", listening)
    async with running(process="child") as engine:
        boot, pid = engine.statistics().boot, engine.process_id
        assert pid is not None
        assert loop.remove_reader(heard[-1])
        os.kill(pid, signal.SIGKILL)
        assert await engine.wait_restart(boot) == boot + 1
