"""What the floor gate is told, gathered from the engine, the ledger and the turns inside.

Reads only. Cells count as used where a pool, a running turn or an admitted worker holds or has booked them, and where a
window keeps them for its session; those of anybody else can be had at any time.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

from polystem.capacity.facts import Facts, Step
from polystem.capacity.step_model import StepLoad
from polystem.engine.protocol import EngineStatistics
from polystem.fleet.session import Sessions
from polystem.fleet.turn import Turn
from polystem.pool import Account, CellLedger


class FactsReader:
    """Gathers facts of one fleet. Steps are handed on once."""

    def __init__(self, ledger: CellLedger, sessions: Sessions) -> None:
        self._ledger = ledger
        self._sessions = sessions
        self._last_step_at = float("-inf")

    def engine_restarted(self) -> None:
        """The steps of the new boot may be told by another clock."""
        self._last_step_at = float("-inf")

    def is_booked(self, worker: str, pool_id: int | None) -> bool:
        """Whether a window pays for a worker's cells: its own, or that of the owner of the pool that it names."""
        pool = None if pool_id is None else self._ledger.tree.find(pool_id)
        return worker in self._ledger.windows or (pool is not None and pool.payer is not None)

    def read(
        self, engine: EngineStatistics, inside: Mapping[str, Turn], members: Collection[str], coming: Iterable[str] = ()
    ) -> Facts:
        """The facts now. `inside` are the turns that were let in, by worker; `members` the admitted sessions, `coming`
        those whose request waits in front of the gate."""
        ledger = self._ledger
        accounts = self._accounts(inside, members)
        claims = {worker: account.claimed_cells for worker, account in accounts.items()}
        held = {worker: _held_cells(account, engine) for worker, account in accounts.items()}
        claimed_cells, windows_keep = sum(claims.values()), self._kept_by_windows(accounts.values())
        return Facts(
            steps=self._new_steps(engine),
            decoding=engine.decoding,
            prefilling=engine.prefilling,
            prefill_backlog_tokens=engine.prefill_backlog_tokens,
            cells_total=engine.cells_total,
            cells_used=ledger.pool_cells + claimed_cells + windows_keep,
            reserved_cells=claimed_cells - sum(held.values()) + windows_keep,
            pool_cells=ledger.pool_cells,
            seats_total=engine.sequences_total,
            seats_used=ledger.pools_held + len(accounts),
            turn_tokens={worker: len(turn.output) for worker, turn in inside.items()},
            worker_cells=held,
            worker_claims=claims,
            window_holders=frozenset(window.session_id for window in ledger.windows),
            coming=frozenset(coming),
        )

    def _kept_by_windows(self, accounts: Iterable[Account]) -> int:
        """What windows keep beyond their pools and what is claimed in them."""
        if not len(self._ledger.windows):
            return 0
        charges = self._ledger.pool_charges()
        for account in accounts:
            charges[account.payer] += account.claimed_cells
        return sum(max(0, window.cells - charges[window.session_id]) for window in self._ledger.windows)

    def _accounts(self, inside: Mapping[str, Turn], members: Iterable[str]) -> dict[str, Account]:
        """The branches of admitted workers, by worker."""
        accounts: dict[str, Account] = {}
        for worker in members:
            session = self._sessions.find(worker)
            account = None if session is None else self._sessions.account(session)
            if account is not None:
                accounts[worker] = account
        for worker, turn in inside.items():
            if turn.account is not None and self._ledger.holds(turn.account):
                accounts[worker] = turn.account
        return accounts

    def _new_steps(self, engine: EngineStatistics) -> tuple[Step, ...]:
        new: list[Step] = []
        for sample in reversed(engine.steps):
            if sample.at_s <= self._last_step_at:
                break
            load = StepLoad(sample.decoding, sample.cells_read, sample.prefill_tokens)
            new.append(Step(load, sample.period_s, sample.at_s))
        if new:
            self._last_step_at = new[0].at_s
        return tuple(reversed(new))


def _held_cells(account: Account, engine: EngineStatistics) -> int:
    """What is in the cache: a turn that runs has booked its prompt and all that it may say, and fills it bit by bit."""
    if not account.running:
        return account.private_cells
    tokens = engine.branch_tokens.get(account.branch, account.tokens)
    return min(account.claimed_cells, max(0, tokens - account.shared_tokens))
