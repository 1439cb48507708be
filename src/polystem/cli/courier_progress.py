"""What a courier run shows on stderr while it runs: a live table on a terminal, a line now and then elsewhere."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from typing import Protocol

from rich.console import Console
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table

from polystem.cli.courier_rate import RateOfLate
from polystem.cli.courier_watch import WatchProgress
from polystem.clock import Clock
from polystem.harness.arm_servers import ArmServers
from polystem.harness.board import Board

LINE_EVERY_S = 5.0


class CourierProgress(Protocol):
    """Told of every sample. `around` may look at the servers of the arms while they run."""

    def around(self, servers: ArmServers, clock: Clock) -> ArmServers: ...

    def show(self, board: Board) -> None: ...


@contextmanager
def shown_progress(console: Console, *, watch: bool = False) -> Generator[CourierProgress, None, None]:
    """Progress on a console, for as long as the block runs; with `watch` also what the server tells of its fleet."""
    if not console.is_terminal:
        yield WatchProgress(console, None) if watch else LineProgress(console)
        return
    with Live("waiting for the server", console=console, refresh_per_second=4, transient=True) as live:
        yield WatchProgress(console, live) if watch else LiveProgress(live)


class LineProgress:
    """One line each few seconds, for logs."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._rate = RateOfLate()
        self._board: Board | None = None
        self._told_s = 0.0

    def around(self, servers: ArmServers, clock: Clock) -> ArmServers:
        """The servers as they are."""
        return servers

    def show(self, board: Board) -> None:
        rate_tps = self._rate.of(board)
        if board is self._board and board.at_s < self._told_s + LINE_EVERY_S:
            return
        self._board, self._told_s = board, board.at_s
        done, counts = board.delivered + board.dropped, board.counts()
        self._console.print(
            f"{board.arm} {board.at_s:.0f} s: {done} of {board.packages} packages done, "
            f"{board.steps_taken} of {board.packages * board.steps} steps, {counts.total()} live, "
            f"{rate_tps:.0f} tokens/s, {_cells_text(board)}",
            highlight=False,
            soft_wrap=True,
        )


class LiveProgress:
    """A table that is drawn anew with every sample."""

    def __init__(self, live: Live) -> None:
        self._live = live
        self._rate = RateOfLate()

    def around(self, servers: ArmServers, clock: Clock) -> ArmServers:
        """The servers as they are."""
        return servers

    def show(self, board: Board) -> None:
        counts, all_steps = board.counts(), board.packages * board.steps
        table = Table.grid(padding=(0, 2))
        table.add_row("arm", board.arm)
        table.add_row("packages", f"{board.delivered} delivered, {board.dropped} dropped, of {board.packages}")
        table.add_row("steps", ProgressBar(total=all_steps, completed=board.steps_taken, width=40))
        table.add_row(
            "agents", f"{counts['queued']} waiting, {counts['decoding']} decoding, {counts['tools']} in tools"
        )
        table.add_row("rate", f"{self._rate.of(board):.0f} tokens/s in all, {board.retries} retries")
        table.add_row("cells", _cells_text(board))
        self._live.update(table)


def _cells_text(board: Board) -> str:
    cells = board.cells
    if cells.used is None or cells.total is None:
        return "cells unknown"
    ratio = f", {cells.naive / cells.used:.2f}x fewer than naive" if cells.naive and cells.used else ""
    return f"{cells.used} of {cells.total} cells{ratio}"
