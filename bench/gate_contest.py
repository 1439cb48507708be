"""The runs of the gate's bench: which arms there are, and who runs against whom in which order.

Invariant: all runs of a contest do the same token work under the same floor.
"""

from __future__ import annotations

import shutil
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field
from uuid import uuid4

from bench.gate_disturbed import disturbance
from bench.gate_figures import ArmPoint, Outcome, as_good, found_again_s, mean_point, outcome_of
from bench.gate_load import LIMIT_S, Arm, ArmRun, Load, Machine, run_arm
from bench.record import tell
from polystem.capacity.fits import FitStore
from polystem.capacity.measured_mean import MeasuredMean
from polystem.capacity.policy import FloorPolicy, GateSettings
from polystem.fleet import FloorSettings
from polystem.harness.intervals import abba
from polystem.harness.rates import stream_windows
from polystem.harness.rows import TurnRow

__all__ = ["COLD", "MEASURED_MEAN", "NO_GATE", "OURS", "SLOWER", "Contest", "Disturbed", "Rival", "make_arm", "static"]

NO_GATE, MEASURED_MEAN, OURS, COLD = "no gate", "measured mean", "floor gate", "floor gate, cold"
SLOWER = 1.05
"""An arm that takes so many times as long as ours does not do as well."""

ALONE_AFTER_S, ALONE_LASTS_S = 2.0, 12.0
DISTURBED_LEAST_S = 20.0
"""Twice what the floor may take to hold again: a floor that never does must not look as if it had in time."""


def static(limit: int) -> str:
    """The name of the arm with a fixed number of workers."""
    return f"static {limit}"


def make_arm(name: str, floor_tps: float, fits: FitStore | None = None) -> Arm:
    """An arm by its name; every worker waits as long as it has to. Ours begins with what `fits` holds."""
    if name == NO_GATE:
        return Arm(name, None)
    if name.startswith("static "):
        gate = GateSettings(max_workers=int(name.removeprefix("static ")))
        return Arm(name, FloorSettings(gate=gate, admit_wait_s=None))
    rule = MeasuredMean() if name == MEASURED_MEAN else None
    gate = GateSettings(policy=FloorPolicy(floor_tps=floor_tps))
    return Arm(name, FloorSettings(gate=gate, admit_wait_s=None, rule=rule), fits if name == OURS else None)


@dataclass(frozen=True, slots=True)
class Disturbed:
    """A disturbed run; `found_again_s` is the longest for which its floor stayed broken."""

    kind: str
    outcome: Outcome
    found_again_s: float


@dataclass(frozen=True, slots=True)
class Rival:
    """A fixed limit in the disturbances: as far as it did as well as ours, and the run in which it did not."""

    limit: int
    passed: int
    failed_on: str | None
    outcome: Outcome


@dataclass(slots=True)
class Contest:
    """All runs on one model. `fits` is where runs of ours leave what they learned for the next one."""

    machine: Machine
    load: Load
    floor_tps: float
    fits: FitStore
    outcomes: dict[str, list[Outcome]] = field(default_factory=lambda: {})
    looks: int = 0
    out_of_balance: int = 0

    async def teach(self) -> None:
        """One run of ours that counts for nothing: a server has been up before."""
        run = await run_arm(self.machine, make_arm(OURS, self.floor_tps, self.fits), self.load)
        tell(f"{self.machine.model}, {OURS}, the run before: {self._note(run)}")

    def _arm(self, name: str) -> Arm:
        """Each run of ours begins with what the first has taught, so that runs are independent of each other."""
        mine = FitStore(self.fits.path.with_name(f"{uuid4()}.json"))
        if name == OURS and self.fits.path.exists():
            shutil.copyfile(self.fits.path, mine.path)
        return make_arm(name, self.floor_tps, mine)

    async def sweep(self, limits: Sequence[int]) -> None:
        """Every fixed limit."""
        for limit in limits:
            await self._run(static(limit))

    async def rounds(self, names: Sequence[str], rounds: int) -> dict[str, list[Outcome]]:
        """Arms side by side; the outcomes of these rounds alone, so that they pair up."""
        begun = {name: len(self.outcomes.get(name, ())) for name in names}
        for arms in abba(names, rounds):
            for name in arms:
                await self._run(name)
        return {name: self.outcomes[name][begun[name] :] for name in names}

    async def _run(self, name: str) -> None:
        outcome = self._note(await run_arm(self.machine, self._arm(name), self.load))
        self.outcomes.setdefault(name, []).append(outcome)
        tell(f"{self.machine.model}, {name}: {outcome}")

    def _note(self, run: ArmRun) -> Outcome:
        self.looks += run.watch.looks
        self.out_of_balance += run.watch.out_of_balance
        return outcome_of(run.record, run.arm, self.floor_tps, cut=run.cut, held_s=run.watch.held_s)

    def points(self) -> dict[str, ArmPoint]:
        """Where each arm lies."""
        return {name: mean_point(outcomes) for name, outcomes in self.outcomes.items()}

    # --- disturbances ---------------------------------------------------------------------------------------------

    async def disturbed(self, kinds: Sequence[str], rounds: int) -> dict[str, list[Disturbed]]:
        """Our arm under each disturbance."""
        found: dict[str, list[Disturbed]] = {kind: [] for kind in kinds}
        for order in abba(kinds, rounds):
            for kind in order:
                found[kind].append(await self._disturbed(OURS, kind, LIMIT_S))
        return found

    async def alone_tps(self, kind: str) -> float:
        """The rate of one worker by itself while a disturbance lasts: a floor above it is out of anybody's reach."""
        planned = disturbance(kind, self.load, after_s=ALONE_AFTER_S, lasts_s=ALONE_LASTS_S, slow_s=0.0)
        run = await run_arm(
            self.machine, make_arm(static(1), self.floor_tps), planned.load, disturb=planned.disturb,
            limit_s=ALONE_AFTER_S + ALONE_LASTS_S,
        )  # fmt: skip
        windows = stream_windows(run.record.of(TurnRow, run.arm))
        during = [each.rate_tps for each in windows if each.at_s >= planned.begun_s]
        tell(f"{self.machine.model}, one worker alone, {kind}: {during} tokens/s")
        return statistics.median(during) if during else 0.0

    async def rivals(self, limits: Sequence[int], ours: dict[str, list[Disturbed]]) -> list[Rival]:
        """Every fixed limit under one disturbance after the other, as long as it does as well as ours."""
        marks = {kind: mean_point([run.outcome for run in runs]) for kind, runs in ours.items()}
        rounds = max((len(runs) for runs in ours.values()), default=0)
        return [await self._rival(limit, marks, rounds) for limit in limits]

    async def _rival(self, limit: int, marks: dict[str, ArmPoint], rounds: int) -> Rival:
        """It does as well where it does in most rounds, so that one bad moment of the machine decides nothing."""
        run = None
        for passed, (kind, mark) in enumerate(marks.items()):
            good = bad = 0
            while max(good, bad) * 2 <= rounds:
                run = await self._disturbed(static(limit), kind, SLOWER * mark.time_s + 1)
                is_good = as_good(run.outcome.point, mark, slower=SLOWER)
                good, bad = good + is_good, bad + (not is_good)
            if run is not None and bad > good:
                return Rival(limit, passed, kind, run.outcome)
        assert run is not None
        return Rival(limit, len(marks), None, run.outcome)

    async def _disturbed(self, name: str, kind: str, limit_s: float) -> Disturbed:
        """Foreign load a quarter into the time of our undisturbed run, for long enough to see whether the floor comes
        back; a slow tool takes an eighth of that time."""
        wall_s = statistics.median(outcome.wall_s for outcome in self.outcomes[OURS])
        planned = disturbance(
            kind, self.load, after_s=wall_s / 4, lasts_s=max(wall_s / 2, DISTURBED_LEAST_S), slow_s=wall_s / 8
        )
        run = await run_arm(self.machine, self._arm(name), planned.load, disturb=planned.disturb, limit_s=limit_s)
        outcome, turns = self._note(run), run.record.of(TurnRow, run.arm)
        until_s = min(planned.ended_s, max((turn.last_token_s for turn in turns), default=0.0))
        again_s = found_again_s(stream_windows(turns), self.floor_tps, since_s=planned.begun_s, until_s=until_s)
        tell(f"{self.machine.model}, {name}, {kind}: the floor holds again after {again_s:.1f} s; {outcome}")
        return Disturbed(kind, outcome, again_s)
