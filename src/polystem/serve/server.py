"""The life of a server: bind, load, serve, drain, end.

The port is bound before the model is loaded, so a taken port is told at once, and /health says that the engine is
starting. The first SIGTERM or SIGINT drains: new requests get 503, running ones finish, then the server ends. The
second ends it at once.
"""

from __future__ import annotations

import asyncio
import contextlib
import signal
import socket
from collections.abc import Callable, Coroutine, Generator
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias

import uvicorn

from polystem.errors import ConfigError
from polystem.fleet import Fleet
from polystem.serve.app import build_app
from polystem.serve.settings import ServeSettings

End: TypeAlias = Literal["drained", "cut"]
Tell: TypeAlias = Callable[[str], None]
BACKLOG = 512
FLUSH_S = 5
CUT_S = 1
KEEP_ALIVE_S = 75  # agents come back after a tool call; a connection that was closed meanwhile costs them a retry
TCP_PROBES = {"TCP_KEEPIDLE": 60, "TCP_KEEPINTVL": 15, "TCP_KEEPCNT": 4}
SIGNALS = (signal.SIGINT, signal.SIGTERM)


def run_server(fleet: Fleet, settings: ServeSettings, *, on_listening: Tell, on_ready: Tell) -> End:
    """Serves until a signal; both callbacks get the server's URL. Raises ConfigError, or what `fleet.start` raises."""
    listener = listen(settings)
    server = _Server(_config_of(fleet, settings))
    with asyncio.Runner(loop_factory=server.config.get_loop_factory()) as runner:
        url = url_of(listener)
        on_listening(url)
        return runner.run(_serve(fleet, settings, server, listener, lambda: on_ready(url)))


def listen(settings: ServeSettings) -> socket.socket:
    """A bound socket. Raises ConfigError where the address is taken or is not this machine's."""
    address = (settings.host, settings.port)
    try:
        family = socket.getaddrinfo(*address, type=socket.SOCK_STREAM)[0][0]
        listener = socket.create_server(address, family=family, backlog=BACKLOG)
    except OSError as exc:
        raise ConfigError(
            f"cannot listen on {settings.host} port {settings.port}: {exc.strerror or exc}",
            hint="give another --port (0 picks a free one) or --host",
        ) from exc
    keep_probing(listener)
    return listener


def keep_probing(listener: socket.socket) -> None:
    """Lets the system probe silent connections: one whose client vanished without a word ends within minutes.

    Connections inherit this from their listener.
    """
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in TCP_PROBES.items():
        option = getattr(socket, name, None)  # the names differ between systems
        if option is not None:
            listener.setsockopt(socket.IPPROTO_TCP, option, value)


def url_of(listener: socket.socket) -> str:
    """Where the server is reached."""
    host, port = listener.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def _config_of(fleet: Fleet, settings: ServeSettings) -> uvicorn.Config:
    return uvicorn.Config(
        build_app(fleet, settings),
        http="httptools",
        ws="none",
        lifespan="off",
        log_config=None,
        access_log=False,
        server_header=False,
        timeout_keep_alive=KEEP_ALIVE_S,
        timeout_graceful_shutdown=FLUSH_S,
    )


class _Server(uvicorn.Server):
    """Leaves signals to us: uvicorn would close its listeners before the fleet has drained."""

    @contextlib.contextmanager
    def capture_signals(self) -> Generator[None, None, None]:
        yield


@dataclass(slots=True)
class _Signals:
    """What the operator asked for."""

    drain: asyncio.Event = field(default_factory=asyncio.Event)
    cut: asyncio.Event = field(default_factory=asyncio.Event)

    def receive(self) -> None:
        (self.cut if self.drain.is_set() else self.drain).set()


async def _serve(
    fleet: Fleet, settings: ServeSettings, server: _Server, listener: socket.socket, on_ready: Callable[[], None]
) -> End:
    signals = _Signals()
    loop = asyncio.get_running_loop()
    for number in SIGNALS:
        loop.add_signal_handler(number, signals.receive)
    serving = asyncio.create_task(server.serve(sockets=[listener]))
    try:
        if await _first(fleet.start(), signals.drain.wait()) == 0:
            on_ready()
            await signals.drain.wait()
        end: End = "drained" if await _first(fleet.drain(settings.drain_grace_s), signals.cut.wait()) == 0 else "cut"
        server.should_exit = True
        if end == "drained" and await _first(_ended(serving), signals.cut.wait()) == 1:
            end = "cut"
        return end
    finally:
        await _stop(server, serving)
        await fleet.aclose()


async def _stop(server: _Server, serving: asyncio.Task[None]) -> None:
    """Ends a server that still serves: its listeners are closed, and whoever is still connected is cut off."""
    server.should_exit = server.force_exit = True
    await asyncio.wait((serving,), timeout=CUT_S)
    serving.cancel()
    await asyncio.gather(serving, return_exceptions=True)


async def _ended(task: asyncio.Task[None]) -> None:
    await asyncio.wait((task,))


async def _first(*works: Coroutine[Any, Any, Any]) -> int:
    """Runs all, cancels the rest once one has ended, and tells which that was. Raises what that one raised."""
    tasks = [asyncio.create_task(work) for work in works]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        first = next(index for index, task in enumerate(tasks) if task.done())
        tasks[first].result()
        return first
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
