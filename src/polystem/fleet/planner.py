"""Where a turn's cells come from: its session's branch, a pool, or nothing; and how many it must book.

Pure arithmetic over the ledger. A turn books its prompt beyond what it shares plus its output reserve, so that
shared + booked = prompt + reserve, and it never needs more than that. Whose window pays for it is decided here too.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from polystem.clock import Clock
from polystem.engine.protocol import BranchId, Placement
from polystem.errors import ContextOverflow
from polystem.fleet.gate import Booking
from polystem.fleet.session import Sessions
from polystem.fleet.settings import FleetSettings
from polystem.fleet.turn import AttachReport, Divergence, Turn
from polystem.pool import Account, CellLedger, Holder, Pool, Room, TokenPath, lendable_tokens, lineage

DIVERGENCE_SHOWN_TOKENS = 16


@dataclass(frozen=True, slots=True)
class Share:
    """A pool and how many of its cells a turn borrows."""

    pool: Pool | None
    tokens: int


class Planner:
    """Plans turns over one ledger."""

    def __init__(
        self,
        ledger: CellLedger,
        sessions: Sessions,
        settings: FleetSettings,
        clock: Clock,
        new_branch: Callable[[], BranchId],
    ) -> None:
        self._ledger = ledger
        self._sessions = sessions
        self._settings = settings
        self._clock = clock
        self._new_branch = new_branch

    def check_context(self, turn: Turn, context_tokens: int) -> None:
        """Raises ContextOverflow where prompt and output cannot fit the context; sets the output reserve."""
        prompt_tokens, max_tokens = len(turn.path), turn.request.max_tokens
        if prompt_tokens + (1 if max_tokens is None else max_tokens) > context_tokens:
            raise ContextOverflow(
                prompt_tokens=prompt_tokens, output_tokens=max_tokens or 0, context_tokens=context_tokens
            )
        room = turn.output_limit_tokens = turn.context_room_tokens = context_tokens - prompt_tokens
        turn.reserve_tokens = min(self._settings.growth_reserve_tokens, room) if max_tokens is None else max_tokens

    def payer(self, turn: Turn) -> str | None:
        """The session whose window the turn's cells come out of; None where they come out of the common room.

        Its own session's window, else that of whoever owns the pool that it names, else the one it ran in before.
        """
        session_id = turn.request.session_id
        if session_id in self._ledger.windows:
            return session_id
        named = self.named_pool(turn)
        if named is not None:
            return named.payer
        account = self.own_account(turn)
        return None if account is None else account.payer

    def check_window(self, turn: Turn) -> None:
        """Raises ContextOverflow where the turn could not fit its session's window, or the one that it is to open,
        even if that were empty."""
        session_id = turn.request.session_id
        window = self._ledger.windows.find(session_id)
        cells = turn.opens_cells if window is None else window.cells
        if session_id is None or not cells:
            return
        needed_cells = self.least_cells(turn) if window is None else self.bookings(turn)[0].room.cells
        if needed_cells > cells:
            output_tokens = turn.request.max_tokens or 0
            raise ContextOverflow(
                prompt_tokens=needed_cells - turn.reserve_tokens,
                output_tokens=output_tokens,
                context_tokens=cells,
                window_of=session_id,
            )

    def check_pool(self, path: TokenPath, context_tokens: int) -> None:
        """Raises ContextOverflow where no prompt could be longer than the pool."""
        if len(path) >= context_tokens:
            raise ContextOverflow(prompt_tokens=len(path), context_tokens=context_tokens)

    def named_pool(self, turn: Turn) -> Pool | None:
        """The pool that the request names, if it exists."""
        return None if turn.request.pool_id is None else self._ledger.tree.find(turn.request.pool_id)

    def private_cells(self, turn: Turn) -> int:
        """The cells that the turn will need beyond what a pool lends, as things stand now."""
        return len(turn.path) + turn.reserve_tokens - self._best_share(turn).tokens

    def kept_tokens(self, turn: Turn) -> int:
        """How much of the prompt the session's own branch holds."""
        account = self.own_account(turn)
        if turn.session is None or account is None:
            return 0
        return min(lendable_tokens(turn.session.path, turn.path), account.tokens)

    def own_account(self, turn: Turn) -> Account | None:
        """The cells of the turn's session, None where it has none."""
        return self._sessions.account(turn.session) if turn.session is not None else None

    def bookings(self, turn: Turn) -> Sequence[Booking]:
        """The ways to seat the turn as things stand, best first."""
        share, account, kept = self._best_share(turn), self.own_account(turn), self.kept_tokens(turn)
        if account is not None and self._continues(turn, account, kept, share):
            return [self._continuation(turn, account, kept)]
        ways = [self._fresh(turn, account, share)]
        if share.pool is not None and not share.pool.fixed:
            ways.append(self._fresh(turn, account, Share(None, 0)))
        return ways

    def growth(self, turn: Turn) -> Booking | None:
        """The next step of a turn without max_tokens, None while its reserve is wide enough."""
        step = self._settings.growth_reserve_tokens // 2
        if turn.request.max_tokens is not None or len(turn.output) + step < turn.reserve_tokens:
            return None
        more = min(step, turn.output_limit_tokens - turn.reserve_tokens)
        account = turn.account
        if more <= 0 or account is None:
            return None

        def take() -> Sequence[Holder]:
            account.booked_cells += more
            turn.reserve_tokens += more
            return ()

        return Booking(
            room=Room(account.booked_cells + more, 0),
            take=take,
            undo=_nothing,
            own=account.branch,
            spare=frozenset({account.branch}),
            payer=account.payer,
            worker=account.payer != turn.request.session_id,
        )

    def _best_share(self, turn: Turn) -> Share:
        """What a pool lends to the turn, as far as its request lets it."""
        share, most = self._longest_share(turn), turn.request.shared_prefix_max_tokens
        return share if most is None else Share(share.pool, min(share.tokens, most))

    def _longest_share(self, turn: Turn) -> Share:
        named = self.named_pool(turn)
        if named is not None and named.lends:
            return Share(named, lendable_tokens(named.path, turn.path))
        if self._settings.auto_pool:
            return Share(*self._ledger.tree.best_match(turn.path))
        return Share(None, 0)

    def _continues(self, turn: Turn, account: Account, kept: int, share: Share) -> bool:
        """Whether the session goes on with its own branch.

        A named pool whose whole path matches wins over a longer private copy: the session is moved onto it.
        """
        if not kept or kept < share.tokens:
            return False
        lender = account.pool
        if lender is not None and not lender.listed and kept < account.shared_tokens:
            return False  # a released pool ends where its last borrower does, and this one is about to be cut
        named = self.named_pool(turn)
        moves = named is not None and named.lends and share.tokens == min(len(named), len(turn.path) - 1)
        return not (moves and named not in lineage(account.pool))

    def _continuation(self, turn: Turn, account: Account, kept: int) -> Booking:
        shared = min(account.shared_tokens, kept)
        payer = self.payer(turn)
        booked = self._booked_cells(turn, shared, payer)

        def take() -> Sequence[Holder]:
            # The engine cuts the branch when the turn opens; until then the account answers for it as it is.
            turn.kept_tokens, turn.opens_branch = kept, False
            self._seat(turn, account, booked, Placement(branch=account.branch), payer)
            return ()

        def undo() -> None:
            account.running, account.booked_cells = False, 0

        return Booking(
            room=Room(max(booked, account.tokens - shared), 0),
            take=take,
            undo=undo,
            own=account.branch,
            spare=frozenset({account.branch}),
            payer=payer,
            worker=payer != turn.request.session_id,
        )

    def _fresh(self, turn: Turn, old: Account | None, share: Share) -> Booking:
        payer = self.payer(turn)
        booked = self._booked_cells(turn, share.tokens, payer)
        branch = self._new_branch()

        def take() -> Sequence[Holder]:
            if old is not None:
                self._ledger.close(old.branch)
            account = self._ledger.open(branch, self._clock.now_s())
            account.borrow(share.pool, share.tokens)
            turn.kept_tokens, turn.opens_branch = share.tokens, True
            source = share.pool.branch if share.pool is not None and share.tokens else None
            self._seat(turn, account, booked, Placement(branch, source, share.tokens), payer)
            return () if old is None else (old,)

        return Booking(
            room=Room(booked, 0 if old is not None else 1),
            take=take,
            undo=lambda: self._ledger.close(branch),
            own=None if old is None else old.branch,
            own_ends=old is not None,
            spare=frozenset() if share.pool is None else frozenset({share.pool.branch}),
            payer=payer,
            worker=payer != turn.request.session_id,
        )

    def least_cells(self, turn: Turn) -> int:
        """What the turn will book at least, whatever of its session's cells is left when it does."""
        account = self.own_account(turn)
        kept_share = 0 if account is None else min(account.shared_tokens, self.kept_tokens(turn))
        return self._booked_cells(turn, max(kept_share, self._best_share(turn).tokens), None)

    def _booked_cells(self, turn: Turn, shared_tokens: int, payer: str | None) -> int:
        """What the turn books; where it may say as much as it likes, a window is where it ends, also one that it is
        about to open."""
        prompt_cells = len(turn.path) - shared_tokens
        window = self._ledger.windows.find(payer)
        window_cells = turn.opens_cells if window is None else window.cells
        if turn.request.max_tokens is None:
            room = turn.context_room_tokens
            room = max(1, min(room, window_cells - prompt_cells)) if window_cells else room
            turn.output_limit_tokens = room
            turn.reserve_tokens = min(self._settings.growth_reserve_tokens, room)
        return prompt_cells + turn.reserve_tokens

    def _seat(self, turn: Turn, account: Account, booked_cells: int, placement: Placement, payer: str | None) -> None:
        account.running = True
        account.booked_cells = booked_cells
        account.session_id, account.payer = turn.request.session_id, payer
        turn.account, turn.placement, turn.epoch = account, placement, self._ledger.epoch
        if turn.session is not None:
            turn.session.branch = account.branch
        turn.attach = self._report(turn, account)

    def _report(self, turn: Turn, account: Account) -> AttachReport:
        named, lender = self.named_pool(turn), account.pool
        shared = min(account.shared_tokens, turn.kept_tokens)
        for pool in lineage(lender):
            pool.last_access_at = self._clock.wall_s()
            pool.attached_ever += pool is lender
        told = named or (lender if lender is not None and lender.listed else None)
        match = 0 if told is None else told.path.common_tokens(turn.path)
        kin = told is not None and (told in lineage(lender) or lender in lineage(told))
        return AttachReport(
            pool_id=None if told is None else told.pool_id,
            pool_match_tokens=match,
            pool_len_tokens=0 if told is None else len(told),
            pool_shared_tokens=min(shared, match) if kin else 0,
            shared_tokens=shared,
            pool_unknown=turn.request.pool_id is not None and (named is None or named.state == "failed"),
            divergence=None if named is None or match == len(named) else _divergence(named.path, turn.path, match),
        )


def _divergence(pool: TokenPath, prompt: TokenPath, match_tokens: int) -> Divergence:
    shown = slice(match_tokens, match_tokens + DIVERGENCE_SHOWN_TOKENS)
    return Divergence(match_tokens, tuple(pool.ids[shown].tolist()), tuple(prompt.ids[shown].tolist()))


def _nothing() -> None:
    return
