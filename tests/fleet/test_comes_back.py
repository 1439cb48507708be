"""A fleet whose process ends at any moment, and another one on what it left: nobody is lost, nothing is renumbered."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from polystem.capacity.gate import FloorGate
from polystem.capacity.policy import FloorPolicy
from polystem.clock import VirtualClock
from polystem.engine.scripted import ScriptedEngine, ScriptedSettings
from polystem.errors import AdmissionRefused, ContextOverflow, Draining, SequencesExhausted, Unavailable
from polystem.fleet import Fleet, FleetSettings, FloorSettings
from polystem.fleet.store import FleetStore
from polystem.messages import Delta, Request
from tests.fleet.support import Rule, Stage, asking, begun, created, everybody_reacts, few_at_once, played, run
from tests.in_step import StoreInStep

pytestmark = pytest.mark.anyio

PREFIX = "Handbook of the couriers, third edition. " * 2


@dataclass(slots=True)
class Process(Stage):
    """A fleet with a store: before each step, what was said is written."""

    store: HeldStore

    async def steps(self, number: int = 1) -> None:
        for _ in range(number):
            await self._written()
            await self.clock.advance(1.0)
        await self._written()

    async def _written(self) -> None:
        await everybody_reacts()
        await FleetStore.flushed(self.store)
        await everybody_reacts()


class HeldStore(StoreInStep):
    """Answers that all is written only while `lets` is set."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self.lets = asyncio.Event()
        self.lets.set()

    async def flushed(self) -> bool:
        await self.lets.wait()
        return await super().flushed()


@asynccontextmanager
async def booted(
    path: Path,
    *,
    floor: FloorSettings | None = None,
    cells: int = 2048,
    sequences: int = 16,
    later_s: float = 0.0,
    **settings: object,
) -> AsyncGenerator[Process, None]:
    """One process on the file, that begins so much later than the first one."""
    clock = VirtualClock(wall_start_s=1_000_000.0 + later_s)
    sizes = ScriptedSettings(cells=cells, sequences=sequences, context_tokens=1024, prefill_chunk_tokens=64)
    engine = ScriptedEngine(sizes, clock=clock, step_cost=lambda _decoding, _cells, _prefilled: 1.0)
    chosen = FleetSettings(**settings)  # pyright: ignore[reportArgumentType]
    store = HeldStore(path)
    fleet = Fleet(engine, clock=clock, settings=chosen, floor=floor, store=store)
    await fleet.start()
    try:
        yield Process(fleet, engine, clock, store)
        fleet.check_integrity()
    finally:
        await fleet.aclose()


def left_by_a_kill(path: Path) -> Path:
    """What the process would leave of its file if it were killed at this moment."""
    copy = path.with_name(f"{path.name}-killed")
    for end in ("", "-wal"):
        if Path(f"{path}{end}").exists():
            shutil.copyfile(f"{path}{end}", f"{copy}{end}")
    return copy


def of(name: str, max_tokens: int = 4, **fields: object) -> Request:
    """A turn of the session `name`."""
    return asking(PREFIX + name, max_tokens, session_id=name, **fields)


async def refused_place(process: Process, name: str) -> int | None:
    """The place that the 429 of a worker tells."""
    task = begun(process, of(name, admit_wait_s=0.0))
    while not task.done():
        await process.steps()
    with pytest.raises(AdmissionRefused) as caught:
        await task
    return caught.value.place


# --- workers --------------------------------------------------------------------------------------------------------


async def test_places_and_admissions_survive_a_kill(tmp_path: Path) -> None:
    async with booted(tmp_path / "store", floor=few_at_once(2)) as first:
        for name in ("in one", "in two"):
            await played(first, of(name))
        assert [await refused_place(first, name) for name in "cab"] == [0, 1, 2]
        left = left_by_a_kill(first.store.path)
    async with booted(left, floor=few_at_once(2)) as second:
        view = second.view
        assert (view.live, view.queued, view.absent, view.submitted) == (2, 3, 3, 5)
        assert await refused_place(second, "a newcomer") == 3
        assert [await refused_place(second, name) for name in "bac"] == [2, 1, 0]
        await played(second, of("in one"))
        assert second.view.submitted == 6
        second.audit()
        left = left_by_a_kill(second.store.path)
    async with booted(left, floor=few_at_once(2)) as third:
        assert [await refused_place(third, name) for name in ("a newcomer", *"bac")] == [3, 2, 1, 0]


async def test_who_waited_when_the_process_was_killed_keeps_its_place_too(tmp_path: Path) -> None:
    async with booted(tmp_path / "store", floor=few_at_once(1, admit_wait_s=None)) as first:
        await played(first, of("in"))
        waiting = [begun(first, of(name)) for name in "ab"]
        await first.steps()
        left = left_by_a_kill(first.store.path)
        for task in waiting:
            task.cancel()
    async with booted(left, floor=few_at_once(1, admit_wait_s=None)) as second:
        late, early = begun(second, of("b")), begun(second, of("a"))
        await second.steps()
        await second.fleet.close_session("in")
        await second.until_done(early)
        assert not late.done()
        late.cancel()


async def test_a_continuation_of_a_worker_of_the_killed_process_is_not_refused(tmp_path: Path) -> None:
    async with booted(tmp_path / "store", floor=few_at_once(1)) as first:
        heard = await played(first, of("in"))
        left = left_by_a_kill(first.store.path)
    async with booted(left, floor=few_at_once(1)) as second:
        again = await played(second, asking((*heard.path, *b" go on"), session_id="in", admit_wait_s=0.0))
        assert again.usage.output_tokens == 4
        assert (second.view.live, second.view.submitted) == (1, 1)


async def test_what_a_worker_asked_for_binds_after_a_restart_as_well(tmp_path: Path) -> None:
    async with booted(tmp_path / "store", floor=FloorSettings()) as first:
        await played(first, of("a"))
        heard = await played(first, of("in", floor_tps=0.5))
        await played(first, asking((*heard.path, *b" go on"), session_id="in"))
        left = left_by_a_kill(first.store.path)
    async with booted(left, floor=FloorSettings()) as second:
        assert second.view.floor_tps == 0.5
        await second.fleet.close_session("in")
        assert second.view.floor_tps is None


@pytest.mark.parametrize(("later_s", "inside"), [(200.0, 1), (400.0, 0), (1e6, 0)])
async def test_the_time_that_a_worker_may_be_away_runs_while_no_server_does(
    tmp_path: Path, later_s: float, inside: int
) -> None:
    async with booted(tmp_path / "store", floor=few_at_once(1)) as first:
        await played(first, of("in"))
        assert await refused_place(first, "out") == 0
    async with booted(tmp_path / "store", floor=few_at_once(1), later_s=later_s) as second:
        await second.steps()
        view = second.view
        assert (view.live, view.queued, view.done, view.cancelled) == (inside, inside, 1 - inside, 1 - inside)
        await second.steps(120)
        assert (second.view.submitted, second.view.done, second.view.cancelled) == (2, 1, 1)
        assert (await played(second, of("new", admit_wait_s=0.0))).usage.output_tokens == 4
        second.audit()
    async with booted(tmp_path / "store", floor=few_at_once(1), later_s=later_s) as third:
        assert (third.view.live, third.view.queued) == (1, 0)


async def test_whoever_was_there_when_the_process_was_killed_has_all_its_time_to_come_back(tmp_path: Path) -> None:
    async with booted(tmp_path / "store", floor=few_at_once(1, admit_wait_s=None)) as first:
        there = [begun(first, of(name, 900)) for name in ("in", "out")]
        await first.steps(400)
        left = left_by_a_kill(first.store.path)
        for task in there:
            task.cancel()
    async with booted(left, floor=few_at_once(1), later_s=3000.0) as second:
        await second.steps(290)
        assert (second.view.live, second.view.queued) == (1, 1)
        await second.steps(20)
        assert (second.view.live, second.view.queued) == (0, 0)


@pytest.mark.parametrize("comes", ["in", "out"])
async def test_a_worker_whose_request_waits_for_its_pool_is_not_away(tmp_path: Path, comes: str) -> None:
    path = tmp_path / "store"
    async with booted(path, floor=few_at_once(1)) as first:
        pool_id = await created(first, "x" * 900, pin=True)
        await played(first, asking("x" * 900 + "in", session_id="in"))
        assert await refused_place(first, "out") == 0
        later_s = first.clock.now_s() + 295.0
    async with booted(path, floor=few_at_once(1), later_s=later_s) as second:
        coming = begun(second, asking("x" * 900 + comes, session_id=comes, pool_id=pool_id, admit_wait_s=0.0))
        await second.steps(10)
        assert second.fleet.pools()[0].state == "building"
        assert second.fleet.floor_desk is not None
        assert {name for name in ("in", "out") if second.fleet.floor_desk.knows(name)} == {comes}
        left = left_by_a_kill(path)
        await second.until_done(coming)
        assert coming.exception() is None
        assert second.view.submitted == 2
        second.audit()
    async with booted(left, floor=few_at_once(1), later_s=1e6) as third:
        await third.steps(2)
        assert third.fleet.floor_desk is not None
        assert third.fleet.floor_desk.knows(comes)


async def test_who_was_let_in_with_a_warning_binds_nobody_after_a_restart_either(tmp_path: Path) -> None:
    async with booted(tmp_path / "store", floor=FloorSettings()) as first:
        pool_id = await created(first, PREFIX, pin=True)
        first.fleet.set_pool_policy(pool_id, FloorPolicy(1000.0, on_saturation="warn"))
        await played(first, of("a", pool_id=pool_id))
        await played(first, of("warned", pool_id=pool_id))
        await first.fleet.close_session("a")
        assert first.view.floor_tps is None
        await first.steps()
        left = left_by_a_kill(first.store.path)
    async with booted(left, floor=FloorSettings()) as second:
        assert (second.view.live, second.view.floor_tps) == (1, None)


async def test_the_floor_of_a_pool_is_kept_for_its_workers_after_a_restart_as_it_was(tmp_path: Path) -> None:
    async with booted(tmp_path / "store", floor=FloorSettings()) as first:
        pool_id = await created(first, PREFIX, pin=True)
        first.fleet.set_pool_policy(pool_id, FloorPolicy(0.5))
        await played(first, of("in", pool_id=pool_id))
        first.fleet.set_pool_policy(pool_id, FloorPolicy(0.8))
        await first.steps()
        assert first.view.floor_tps == 0.5
        left = left_by_a_kill(first.store.path)
    async with booted(left, floor=FloorSettings()) as second:
        assert second.view.floor_tps == 0.5


async def test_who_was_closed_or_gave_up_its_place_does_not_come_back(tmp_path: Path) -> None:
    async with booted(tmp_path / "store", floor=few_at_once(1)) as first:
        await played(first, of("in"))
        for name in "ab":
            await refused_place(first, name)
        await first.fleet.close_session("in")
        await first.fleet.close_session("a")
        await first.steps()
        left = left_by_a_kill(first.store.path)
    async with booted(left, floor=few_at_once(1)) as second:
        assert (second.view.live, second.view.queued) == (0, 1)
        assert {view.session_id for view in second.fleet.statistics().sessions} == {"b"}


async def test_who_never_ran_is_told_why_and_does_not_come_back_even_where_the_gate_fails_at_its_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def failing(*_: object, **__: object) -> bool:
        raise ZeroDivisionError

    async with booted(tmp_path / "store", floor=FloorSettings(), sequences=1) as first:
        await created(first, PREFIX, pin=True)
        with monkeypatch.context() as patch:
            patch.setattr(FloorGate, "close", failing)
            with pytest.raises(SequencesExhausted):
                await played(first, of("late"))
        assert first.fleet.statistics().floor_faults == 1
    async with booted(tmp_path / "store", floor=FloorSettings()) as second:
        assert (second.view.live, second.view.queued) == (0, 0)


async def test_a_server_that_ends_in_peace_leaves_the_same(tmp_path: Path) -> None:
    async with booted(tmp_path / "store", floor=few_at_once(1)) as first:
        await played(first, of("in"))
        waiting = begun(first, of("a", admit_wait_s=600.0))
        await first.steps()
        await first.fleet.drain(10.0)
        assert isinstance(waiting.exception(), Draining)
    async with booted(tmp_path / "store", floor=few_at_once(1)) as second:
        assert (second.view.live, second.view.queued) == (1, 1)


async def test_a_server_that_ends_at_once_leaves_the_seat_of_a_turn_that_never_ran_and_the_place_behind_it(
    tmp_path: Path,
) -> None:
    async with booted(tmp_path / "store", floor=few_at_once(1, admit_wait_s=None)) as first:
        first.store.lets.clear()
        turns = [begun(first, of(name)) for name in ("in", "out")]
        await everybody_reacts()
        assert (first.view.live, first.view.queued) == (1, 1)
    assert all(isinstance(turn.exception(), Draining) for turn in turns)
    async with booted(tmp_path / "store", floor=few_at_once(1)) as second:
        assert (second.view.live, second.view.queued) == (1, 1)
        assert await refused_place(second, "out") == 0


# --- transcripts ----------------------------------------------------------------------------------------------------


async def test_a_transcript_is_written_before_its_turn_is_known_to_be_complete(tmp_path: Path) -> None:
    async with booted(tmp_path / "store") as first:
        left: list[Path] = []

        async def reader() -> tuple[int, ...]:
            tokens: list[int] = []
            async with first.fleet.turn(of("a", 6)) as turn:
                async for delta in turn:
                    tokens.extend(delta.tokens)
                    if delta.finish_reason is not None:
                        left.append(left_by_a_kill(first.store.path))
                return (*turn.prompt.tokens, *tokens)

        reading = asyncio.create_task(reader())
        while not reading.done():
            await first.steps()
    async with booted(left[0]) as second:
        (session,) = second.fleet.statistics().sessions
        assert (session.session_id, session.tokens, session.cells) == ("a", len(await reading), 0)
        again = await played(second, asking((*await reading, *b" more"), session_id="a"))
        assert again.usage.cached_tokens == 0


async def test_neither_a_refusal_nor_a_first_delta_is_told_before_it_is_written(tmp_path: Path) -> None:
    async with booted(tmp_path / "store", floor=few_at_once(1)) as process:
        process.store.lets.clear()
        tasks = [begun(process, of("in")), begun(process, of("out", admit_wait_s=0.0))]
        await process.steps(20)
        assert not any(task.done() for task in tasks)
        assert process.engine.statistics().tokens_decoded == 0
        process.store.lets.set()
        await process.until_done(*tasks)
        assert isinstance(tasks[1].exception(), AdmissionRefused)
        assert tasks[0].result().usage.output_tokens == 4


async def test_the_last_delta_is_not_handed_out_before_the_transcript_is_written(tmp_path: Path) -> None:
    async with booted(tmp_path / "store") as process:
        pieces: list[Delta] = []

        async def reader() -> None:
            async with process.fleet.turn(of("a", 6)) as turn:
                async for delta in turn:
                    pieces.append(delta)

        process.store.lets.clear()
        reading = asyncio.create_task(reader())
        await process.steps(20)
        assert process.engine.statistics().decoding == 0
        assert [len(piece.tokens) for piece in pieces] == [1] * 6
        process.store.lets.set()
        await process.steps(2)
        assert reading.done()
        assert pieces[-1].finish_reason == "length"


async def test_a_turn_that_was_cut_leaves_what_is_certain(tmp_path: Path) -> None:
    async with booted(tmp_path / "store") as first:
        running = begun(first, of("a", 500))
        await first.steps(6)
        running.cancel()
        await first.steps(2)
        (before,) = first.fleet.statistics().sessions
        left = left_by_a_kill(first.store.path)
    async with booted(left) as second:
        (after,) = second.fleet.statistics().sessions
        assert after.tokens == before.tokens > len(PREFIX)


async def test_a_forgotten_session_is_forgotten_in_the_file_too(tmp_path: Path) -> None:
    async with booted(tmp_path / "store", sequences=1, remembered_sessions=2) as first:
        for name in "abcd":
            await played(first, of(name))
        await first.steps()
        left = left_by_a_kill(first.store.path)
    async with booted(left) as second:
        assert {view.session_id for view in second.fleet.statistics().sessions} == {"c", "d"}


# --- pools ----------------------------------------------------------------------------------------------------------


async def test_pools_come_back_under_their_ids_and_ids_go_on_above_the_highest(tmp_path: Path) -> None:
    async with booted(tmp_path / "store", floor=FloorSettings()) as first:
        kept = await created(first, PREFIX, pin=True)
        released = await created(first, "b" * 90)
        owned = await created(first, "c" * 70, session_id="owner", ephemeral=True)
        last = await created(first, "d" * 60)
        first.fleet.set_pool_policy(kept, FloorPolicy(2.0, settle_s=3.0))
        first.fleet.pin_pool(owned, True)
        for pool_id in (released, last):
            await first.fleet.release_pool(pool_id)
        await first.steps()
        before = first.fleet.pools()
        left = left_by_a_kill(first.store.path)
    async with booted(left, floor=FloorSettings()) as second:
        await second.steps(20)
        after = second.fleet.pools()
        assert [(pool.pool_id, pool.state) for pool in after] == [(kept, "ready"), (owned, "ready")]
        for one, other in zip(before, after, strict=True):
            told = ("sha256", "pinned", "ephemeral", "auto", "owner", "created_at")
            assert [getattr(one, name) for name in told] == [getattr(other, name) for name in told]
        assert second.fleet.pool_policy(kept) == FloorPolicy(2.0, settle_s=3.0)
        assert second.fleet.pool_policy(owned) is None
        assert await created(second, "e" * 50) == last + 1
        heard = await played(second, asking(PREFIX + "Go.", session_id="a", pool_id=kept))
        assert heard.usage.shared_tokens == len(PREFIX)
        await second.fleet.close_session("owner")
        assert owned not in {pool.pool_id for pool in second.fleet.pools()}


async def test_a_tree_comes_back_as_it_was_told(tmp_path: Path) -> None:
    async with booted(tmp_path / "store") as first:
        root = await created(first, PREFIX, pin=True, unowned=True)
        await played(first, asking(PREFIX + "Go.", session_id="lead", pool_id=root))
        for fields in ({"from_session": "lead", "pin": True}, {"prompt": PREFIX[:40] + "!", "branch_pos": 40}):
            forking = asyncio.create_task(first.fleet.fork_pool(root, **fields))  # pyright: ignore[reportArgumentType]
            while not forking.done():
                await first.steps()
        before = first.fleet.pools()
        left = left_by_a_kill(first.store.path)
    async with booted(left) as second:
        await second.steps(20)
        after = second.fleet.pools()
        told = (
            "pool_id",
            "parent_id",
            "branch_pos",
            "tokens",
            "children",
            "owner",
            "source_session",
            "ephemeral",
            "state",
        )
        assert [[getattr(pool, name) for name in told] for pool in after] == [
            [getattr(pool, name) for name in told] for pool in before
        ]
        assert (after[1].owner, after[1].source_session, after[1].parent_id) == ("lead", "lead", root)
        assert second.engine.statistics().cells_used == sum(pool.own_cells for pool in after)


async def test_pools_stay_written_down_while_a_server_runs_without(tmp_path: Path) -> None:
    path = tmp_path / "store"
    async with booted(path) as first:
        pool_id = await created(first, PREFIX, pin=True)
    async with booted(path, pools_max=0) as second:
        await second.steps(3)
        assert second.fleet.pools() == ()
    async with booted(path) as third:
        await third.steps(10)
        assert [pool.pool_id for pool in third.fleet.pools()] == [pool_id]


async def test_a_turn_waits_for_the_pool_that_is_being_built_again(tmp_path: Path) -> None:
    async with booted(tmp_path / "store", floor=few_at_once(1)) as first:
        pool_id = await created(first, PREFIX)
        left = left_by_a_kill(first.store.path)
    async with booted(left, floor=few_at_once(1)) as second:
        turn = begun(second, asking(PREFIX + "Go.", session_id="a", pool_id=pool_id))
        await second.until_done(turn)
        assert turn.result().usage.shared_tokens == len(PREFIX)


async def test_automatic_pools_come_back_with_their_parents(tmp_path: Path) -> None:
    knobs = {"auto_pool": True, "auto_pool_min_tokens": 40}
    async with booted(tmp_path / "store", **knobs) as first:  # pyright: ignore[reportArgumentType]
        for text in ("one", "two"):
            await played(first, asking(PREFIX + text))
        for text in ("one", "two"):
            await played(first, asking(PREFIX + "Chapter on bridges. " * 5 + text))
        before = [(pool.pool_id, pool.parent_id, pool.branch_pos, pool.tokens) for pool in first.fleet.pools()]
        assert len(before) == 2
        left = left_by_a_kill(first.store.path)
    async with booted(left, **knobs) as second:  # pyright: ignore[reportArgumentType]
        await second.steps(20)
        after = [(pool.pool_id, pool.parent_id, pool.branch_pos, pool.tokens) for pool in second.fleet.pools()]
        assert after == before


async def test_pools_that_no_longer_fit_are_told_as_failed_and_the_others_are_built(tmp_path: Path) -> None:
    async with booted(tmp_path / "store") as first:
        small, large = await created(first, "a" * 100), await created(first, "b" * 600)
        left = left_by_a_kill(first.store.path)
    async with booted(left, cells=400) as second:
        await second.steps(20)
        states = {pool.pool_id: pool.state for pool in second.fleet.pools()}
        assert states == {small: "ready", large: "failed"}
        assert "fewer cells" in second.fleet.pools()[1].detail
        assert (await played(second, of("a"))).usage.output_tokens == 4


async def test_an_id_that_was_given_to_a_pool_that_never_came_to_be_is_not_given_again(tmp_path: Path) -> None:
    async with booted(tmp_path / "store") as first:
        making = asyncio.create_task(first.fleet.create_pool(prompt="a" * 600))
        await first.steps(2)
        assert [pool.pool_id for pool in first.fleet.pools()] == [0]
        left = left_by_a_kill(first.store.path)
        making.cancel()
        await first.steps()
    async with booted(left) as second:
        assert second.fleet.pools() == ()
        assert await created(second, PREFIX) == 1


# --- both together --------------------------------------------------------------------------------------------------


async def test_couriers_whose_server_is_killed_again_and_again_are_all_served(tmp_path: Path) -> None:
    """Each has three turns to do, at most two are let in at once; the server is killed every 40 steps."""
    names = [f"courier {n}" for n in range(6)]
    done = dict.fromkeys(names, 0)
    paths = {name: tuple(f"{PREFIX}{name}".encode()) for name in names}
    path, boots = tmp_path / "store", 0

    async def courier(process: Process, name: str) -> None:
        while done[name] < 3:
            try:
                heard = await run(process.fleet, asking(paths[name], 12, session_id=name, admit_wait_s=20.0))
            except AdmissionRefused as refused:
                await process.clock.sleep(refused.retry_after_s)
                continue
            paths[name] = (*heard.path, *b" and then")
            done[name] += 1
        await process.fleet.close_session(name)

    while any(turns < 3 for turns in done.values()):
        boots += 1
        async with booted(path, floor=few_at_once(2)) as process:
            couriers = [asyncio.create_task(courier(process, name)) for name in names if done[name] < 3]
            for _ in range(40):
                await process.steps()
                process.audit()
            path = left_by_a_kill(path)
            for task in couriers:
                task.cancel()
            await asyncio.gather(*couriers, return_exceptions=True)
        assert boots < 20
    assert boots > 2
    assert done == dict.fromkeys(names, 3)


async def test_who_was_refused_in_front_of_the_gate_is_away_from_then_on(tmp_path: Path) -> None:
    """The window of one is too small for its prompt; at the retry of the other the gate itself fails."""
    rule = Rule(["floor"])
    async with booted(tmp_path / "store", floor=FloorSettings(rule=rule)) as first:
        await played(first, of("inside"))
        assert await refused_place(first, "queued") == 0
        with pytest.raises(ContextOverflow):
            await run(first.fleet, asking("p" * 600, 4, session_id="inside", num_ctx=256))
        rule.answers = [ZeroDivisionError()]
        with pytest.raises(Unavailable):
            await run(first.fleet, of("queued", admit_wait_s=0.0))
        await first.steps()
        killed = left_by_a_kill(tmp_path / "store")
    async with booted(killed, floor=FloorSettings(), later_s=400.0) as second:
        await second.steps(2)
        assert (second.view.live, second.view.queued) == (0, 0)
