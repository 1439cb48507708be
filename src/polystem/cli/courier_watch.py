"""`--watch` of the courier commands: the fleet while it runs, each agent's rate against the floor, cells and queue.

Knows the server only by its public reads: GET /fleet/capacity, /kv and /polykv/tps. What a server does not tell is
shown as not told; a read that fails disturbs no run.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from dataclasses import dataclass, field
from math import inf
from typing import Any, Literal, cast

from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from polystem.cli.courier_rate import RateOfLate
from polystem.clock import Clock
from polystem.engine.remote import RemoteClient
from polystem.errors import PolystemError
from polystem.harness.arm_servers import ArmServers, ServedArm
from polystem.harness.arms import ArmPlan
from polystem.harness.board import Board

__all__ = ["ServerTold", "Stream", "WatchProgress", "WatchView", "WatchedServers", "read_server"]

EVERY_S = 1.0
READ_LIMIT_S = 2.0
LINE_EVERY_S = 5.0
NARROW_COLUMNS = 64
HEAD_LINES = 10
BAR_CELLS = 20
LEAST_ROWS = 3
NAME_COLUMNS = {False: 32, True: 14}
"""Of an agent's name, wide and narrow."""


@dataclass(frozen=True, slots=True)
class Stream:
    """A session as GET /polykv/tps tells it; a rate of 0 is one that is not known yet."""

    session_id: str
    tps: float
    active: bool
    context_tokens: int


@dataclass(frozen=True, slots=True)
class ServerTold:
    """What the server told last; None is what it does not tell."""

    floor_tps: float | None = None
    mean_tps: float | None = None
    share_now: float | None = None
    binding: str | None = None
    queued: int | None = None
    live: int | None = None
    held: int | None = None
    decoding: int | None = None
    foreign: int | None = None
    cells_used: int | None = None
    cells_total: int | None = None
    naive_cells: int | None = None
    streams: tuple[Stream, ...] = field(default=())


async def read_server(client: RemoteClient) -> ServerTold:
    """One look at a server; a page that it does not have leaves its part untold."""
    capacity, kv, tps = await asyncio.gather(
        *(_read(client, path) for path in ("/fleet/capacity", "/kv", "/polykv/tps"))
    )
    floor, workers, room = (_part(capacity, name) for name in ("floor", "workers", "admissible"))
    return ServerTold(
        floor_tps=_number(floor, "floor_tps"),
        mean_tps=_number(floor, "measured_tps") or _number(floor, "mean_active_tps"),
        share_now=_number(floor, "share_now"),
        binding=str(room["binding"]) if room.get("binding") else None,
        queued=_count(workers, "queued"),
        live=_count(workers, "live"),
        held=_count(workers, "held"),
        decoding=_count(workers, "decoding"),
        foreign=_count(workers, "foreign"),
        cells_used=_count(kv, "cells_used"),
        cells_total=_count(kv, "cells_total"),
        naive_cells=_count(kv, "naive_cells"),
        streams=tuple(_streams(tps)),
    )


async def _read(client: RemoteClient, path: str) -> Mapping[str, Any]:
    with suppress(PolystemError, TimeoutError):
        async with asyncio.timeout(READ_LIMIT_S):
            return await client.get_json(path)
    return {}


def _part(body: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    part = body.get(name)
    return cast("Mapping[str, Any]", part) if isinstance(part, Mapping) else {}


def _number(body: Mapping[str, Any], name: str) -> float | None:
    value = body.get(name)
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None


def _count(body: Mapping[str, Any], name: str) -> int | None:
    value = body.get(name)
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def _streams(body: Mapping[str, Any]) -> Sequence[Stream]:
    listed = body.get("sessions")
    rows = (
        [cast("Mapping[str, Any]", row) for row in cast("list[Any]", listed) if isinstance(row, Mapping)]
        if isinstance(listed, list)
        else []
    )
    return [
        Stream(
            str(row.get("session_id") or f"slot {row.get('slot_id')}"),
            _number(row, "tps_ewma") or 0.0,
            bool(row.get("active")),
            _count(row, "ctx_used") or 0,
        )
        for row in rows
    ]


class WatchedServers:
    """Servers that are looked at once a second while an arm runs on them."""

    def __init__(self, servers: ArmServers, progress: WatchProgress, clock: Clock) -> None:
        self._servers = servers
        self._progress = progress
        self._clock = clock

    @property
    def kind(self) -> Literal["own", "given"]:
        return self._servers.kind

    def serving(self, arm: ArmPlan, floor_tps: float | None) -> AbstractAsyncContextManager[ServedArm]:
        return self._watched(arm, floor_tps)

    @asynccontextmanager
    async def _watched(self, arm: ArmPlan, floor_tps: float | None) -> AsyncGenerator[ServedArm, None]:
        async with self._servers.serving(arm, floor_tps) as served:
            looking = asyncio.create_task(self._look(served.client))
            try:
                yield served
            finally:
                looking.cancel()
                with suppress(asyncio.CancelledError):
                    await looking
                self._progress.tell(ServerTold())

    async def _look(self, client: RemoteClient) -> None:
        while True:
            self._progress.tell(await read_server(client))
            await self._clock.sleep(EVERY_S)


class WatchProgress:
    """Told of every sample and every look at the server; draws both, or tells a line now and then."""

    def __init__(self, console: Console, live: Live | None) -> None:
        self._console = console
        self._live = live
        self._rate = RateOfLate()
        self._server = ServerTold()
        self._line_at: tuple[Board, float] | None = None

    def around(self, servers: ArmServers, clock: Clock) -> ArmServers:
        """The same servers, looked at."""
        return WatchedServers(servers, self, clock)

    def tell(self, server: ServerTold) -> None:
        """What the server said last."""
        self._server = server

    def show(self, board: Board) -> None:
        view = WatchView(board, self._server, self._rate.of(board))
        if self._live is not None:
            self._live.update(view)
            return
        if self._line_at is None or board is not self._line_at[0] or board.at_s >= self._line_at[1] + LINE_EVERY_S:
            self._line_at = (board, board.at_s)
            self._console.print(view.line(), highlight=False, markup=False, soft_wrap=True)


@dataclass(frozen=True, slots=True)
class WatchView:
    """One picture of the fleet; fits the terminal that it is drawn on."""

    board: Board
    server: ServerTold
    output_tps: float

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        narrow = options.max_width < NARROW_COLUMNS
        rows = max(LEAST_ROWS, (options.height or console.size.height) - HEAD_LINES)
        yield Group(self._head(narrow), self._streams(rows, narrow))

    def line(self) -> str:
        """The same in one line, for logs."""
        board, server = self.board, self.server
        floor = "no floor" if server.floor_tps is None else f"floor {server.floor_tps:g}"
        causes = f" ({self._drops()})" if board.dropped else ""
        return (
            f"{board.arm} {board.at_s:.0f} s: {board.delivered} delivered, {board.dropped} dropped{causes} of "
            f"{board.packages}; workers {self._workers()}; {self._rates()}, {floor}; {self._cells()}"
        )

    def _head(self, narrow: bool) -> Table:
        board, server = self.board, self.server
        table = Table.grid(padding=(0, 2))
        table.add_column(no_wrap=True)
        table.add_column(overflow="fold")
        done = Text(f"{board.delivered} delivered, ")
        done.append(f"{board.dropped} dropped", style="bold red" if board.dropped else "")
        done.append(f", of {board.packages}; {board.retries} retries")
        bar = ProgressBar(
            total=max(1, board.packages * board.steps), completed=board.steps_taken, width=16 if narrow else 40
        )
        table.add_row("arm", Text(f"{board.arm}, {board.at_s:.0f} s"))
        table.add_row("packages", done)
        if board.dropped:
            table.add_row("drops", self._drops())
        table.add_row("steps", bar)
        table.add_row("workers", self._workers())
        table.add_row("rate", self._rates())
        table.add_row("floor", self._floor())
        table.add_row("cells", self._cells())
        if server.binding is not None:
            table.add_row("nobody more", Text(server.binding))
        return table

    def _drops(self) -> Text:
        """Drops by cause; cross-talk first and loudest, for it spoils all else."""
        causes = sorted(self.board.dropped_by.items(), key=lambda each: (each[0] != "cross_talk", each[0]))
        told = [Text(f"{cause} {count}", style="bold red" if cause == "cross_talk" else "") for cause, count in causes]
        return Text(", ").join(told)

    def _workers(self) -> str:
        counts, server = self.board.counts(), self.server
        if server.live is None:
            return f"{counts['queued']} waiting, {counts['decoding']} decoding, {counts['tools']} in tools"
        foreign = f", {server.foreign} foreign" if server.foreign else ""
        return f"{server.live} live, {server.queued} queued, {server.held} held, {server.decoding} decoding{foreign}"

    def _active(self) -> list[Stream]:
        """Streams that run, the slowest first; those whose rate is not known yet, as of turns just begun, come last."""
        return sorted((each for each in self.server.streams if each.active), key=lambda each: each.tps or inf)

    def _known(self) -> list[Stream]:
        return [each for each in self._active() if each.tps > 0]

    def _rates(self) -> str:
        mean = "" if self.server.mean_tps is None else f", {self.server.mean_tps:.1f} a stream"
        return f"{self.output_tps:.0f} tokens/s in all{mean}, slowest {self._slowest()}"

    def _slowest(self) -> str:
        known = self._known()
        return f"{known[0].tps:.1f}" if known else "-"

    def _floor(self) -> Text:
        floor_tps = self.server.floor_tps
        if floor_tps is None:
            return Text("none is set, or none is told")
        known = self._known()
        under = sum(each.tps < floor_tps for each in known)
        now = f"{under} of {len(known)} under it now" if known else "no agent's rate is known yet"
        share = "" if self.server.share_now is None else f"; predicted {self.server.share_now:.1%} of time under it"
        return Text(f"{floor_tps:g} tokens/s: {now}{share}", style="red" if under else "")

    def _cells(self) -> str:
        told = self.board.cells
        used = told.used if self.server.cells_used is None else self.server.cells_used
        total = told.total if self.server.cells_total is None else self.server.cells_total
        naive = told.naive if self.server.naive_cells is None else self.server.naive_cells
        if used is None or total is None:
            return "cells not told"
        ratio = f", {naive / used:.2f}x fewer than naive" if naive and used else ""
        return f"{used} of {total} cells{ratio}"

    def _streams(self, rows: int, narrow: bool) -> RenderableType:
        """The slowest first: they are who the floor is for."""
        active = self._active()
        if not active:
            return Text("")
        most_tps = max(*(each.tps for each in active), self.server.floor_tps or 0.0)
        table = Table(box=None, padding=(0, 1), pad_edge=False)
        table.add_column("agent", overflow="ellipsis", no_wrap=True, max_width=NAME_COLUMNS[narrow])
        table.add_column("tokens/s", justify="right")
        table.add_column("context", justify="right")
        if not narrow:
            table.add_column("against the floor")
        shown = active if len(active) <= rows else active[: rows - 1]
        for each in shown:
            cells = [
                Text(_ending(each.session_id, NAME_COLUMNS[narrow])),
                self._tps(each),
                Text(str(each.context_tokens)),
            ]
            table.add_row(*cells, *(() if narrow else (self._bar(each, most_tps),)))
        if len(shown) < len(active):
            table.add_row(Text(f"{len(active) - len(shown)} more"), "", "", *(() if narrow else ("",)))
        return table

    def _tps(self, stream: Stream) -> Text:
        return Text(f"{stream.tps:.1f}", style=self._style(stream)) if stream.tps > 0 else Text("-")

    def _style(self, stream: Stream) -> str:
        return "red" if self.server.floor_tps is not None and stream.tps < self.server.floor_tps else "green"

    def _bar(self, stream: Stream, most_tps: float) -> Text:
        """A bar as long as the rate, with the floor marked on it; nothing while the rate is not known."""
        if stream.tps <= 0:
            return Text("")
        length = round(BAR_CELLS * stream.tps / most_tps)
        marks = list("█" * length + "·" * (BAR_CELLS - length))
        if self.server.floor_tps is not None:
            marks[min(BAR_CELLS - 1, round(BAR_CELLS * self.server.floor_tps / most_tps))] = "│"
        return Text("".join(marks), style=self._style(stream))


def _ending(name: str, columns: int) -> str:
    """The end of a name that is too long: there the names of a run's agents differ."""
    return name if len(name) <= columns else f"…{name[1 - columns :]}"
