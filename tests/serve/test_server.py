"""The life of a server, as a real process: bind, drain on SIGTERM, end on the second signal."""

from __future__ import annotations

import asyncio
import signal
import socket
import subprocess
import sys
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import TypeAlias

import httpx
import orjson
import pytest

from polystem.engine.scripted import ScriptedEngine
from polystem.errors import ConfigError, ModelFileError
from polystem.fleet import Fleet
from polystem.serve import ServeSettings
from polystem.serve.server import listen, run_server, url_of

SCRIPT = Path(__file__).with_name("scripted_server.py")
Process: TypeAlias = "subprocess.Popen[str]"
CHAT = {"messages": [{"role": "user", "content": "Hi"}], "stream": True}


@contextmanager
def scripted_server(*, step_s: float = 0.01, drain_grace_s: float = 30.0) -> Generator[tuple[Process, str], None, None]:
    arguments = [sys.executable, str(SCRIPT), str(step_s), str(drain_grace_s)]
    with subprocess.Popen(arguments, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            yield process, process.stdout.readline().strip()
        finally:
            process.kill()


def test_sigterm_lets_a_running_stream_finish_refuses_new_work_and_exits_with_0() -> None:
    with scripted_server() as (process, url), httpx.Client(base_url=url, timeout=30) as client:
        with client.stream("POST", "/v1/chat/completions", json=CHAT) as response:
            lines = response.iter_lines()
            first = next(lines)
            process.send_signal(signal.SIGTERM)
            refused = _first_refusal(url)
            rest = list(lines)
        assert first.startswith("data: ")
        assert "".join(rest).count('"content":"a"') == 50
        assert "data: [DONE]" in rest
        assert (refused.status_code, refused.json()["reason"]) == (503, "draining")
        assert process.wait(timeout=20) == 0


def _first_refusal(url: str) -> httpx.Response:
    """Asks until the signal has arrived; each answer before is a 200."""
    while (response := httpx.get(f"{url}/health")).status_code == 200:
        pass
    return response


def test_the_second_signal_ends_at_once() -> None:
    with scripted_server(step_s=30.0) as (process, url), _asked(url):
        process.send_signal(signal.SIGTERM)
        _first_refusal(url)
        process.send_signal(signal.SIGTERM)
        assert process.wait(timeout=20) == 130


@contextmanager
def _asked(url: str) -> Generator[None, None, None]:
    """A request whose turn runs, and whose answer nobody waits for."""
    host, port = url.removeprefix("http://").split(":")
    body = orjson.dumps(CHAT)
    head = f"POST /v1/chat/completions HTTP/1.1\r\nHost: a\r\nContent-Length: {len(body)}\r\n"
    with socket.create_connection((host, int(port))) as connection:
        connection.sendall(f"{head}Content-Type: application/json\r\n\r\n".encode() + body)
        while httpx.get(f"{url}/kv").json()["live"] == 0:
            pass
        yield


def test_a_turn_that_outlasts_the_grace_is_ended_with_an_error_event() -> None:
    with scripted_server(drain_grace_s=0.05) as (process, url), httpx.Client(base_url=url, timeout=30) as client:
        with client.stream("POST", "/v1/chat/completions", json=CHAT) as response:
            lines = response.iter_lines()
            next(lines)
            process.send_signal(signal.SIGTERM)
            rest = "".join(lines)
        assert '"code":503' in rest
        assert "[DONE]" not in rest
        assert process.wait(timeout=20) == 0


def test_an_idle_server_exits_with_0_on_ctrl_c() -> None:
    with scripted_server() as (process, url):
        assert httpx.get(f"{url}/health").status_code == 200
        process.send_signal(signal.SIGINT)
        assert process.wait(timeout=20) == 0


class LateFailure(ScriptedEngine):
    """An engine that finds out that its model cannot be run while clients ask already."""

    url = ""
    status = b""

    def listens_at(self, url: str) -> None:
        self.url = url

    async def start(self) -> None:
        host, port = self.url.removeprefix("http://").split(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        writer.write(b"GET /health HTTP/1.1\r\nHost: a\r\n\r\n")
        self.status = await reader.readline()
        writer.close()
        await writer.wait_closed()
        raise ModelFileError("not a model")


def test_an_engine_that_fails_while_clients_ask_ends_the_server() -> None:
    engine = LateFailure()
    with pytest.raises(ModelFileError):
        run_server(Fleet(engine), ServeSettings(port=0), on_listening=engine.listens_at, on_ready=engine.listens_at)
    assert b"503" in engine.status
    with pytest.raises(httpx.ConnectError):
        httpx.get(engine.url)


def test_a_taken_port_is_told_with_a_way_out(free_port: int) -> None:
    with socket.create_server(("127.0.0.1", free_port)):
        with pytest.raises(ConfigError, match=str(free_port)) as caught:
            listen(ServeSettings(port=free_port))
        assert "--port" in (caught.value.hint or "")


def test_a_host_that_is_not_this_machine_is_told() -> None:
    with pytest.raises(ConfigError, match=r"192\.0\.2\.1"):
        listen(ServeSettings(host="192.0.2.1", api_keys=("key",)))


def test_port_0_picks_a_free_port_that_the_url_names() -> None:
    with listen(ServeSettings(port=0)) as listener:
        url = url_of(listener)
        assert url == f"http://127.0.0.1:{listener.getsockname()[1]}"
        assert not url.endswith(":0")


def test_the_system_probes_connections_whose_client_may_have_vanished() -> None:
    with listen(ServeSettings(port=0)) as listener, socket.create_connection(listener.getsockname()):
        accepted, _ = listener.accept()
        with accepted:
            assert accepted.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE) != 0
            if hasattr(socket, "TCP_KEEPIDLE"):
                assert accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE) == 60
