"""All that the gate keeps, in one place. Each part has its own invariant; together:

places of the queue = queued workers of the roster
"""

from __future__ import annotations

from dataclasses import dataclass, field
from math import inf

from polystem.capacity.demand import DemandEstimate, Seen
from polystem.capacity.facts import Facts
from polystem.capacity.forecast import Forecast
from polystem.capacity.ladder import Ladder
from polystem.capacity.margin import TurnMargin
from polystem.capacity.meter import StepMeter
from polystem.capacity.policy import FloorPolicy, GateSettings
from polystem.capacity.queue import FairQueue
from polystem.capacity.reach import Reach
from polystem.capacity.rule import AdmissionRule, FloorRule
from polystem.capacity.step_model import StepModel
from polystem.capacity.workers import Roster

__all__ = ["GateParts"]

_TEMPO_SAMPLES = 5
"""The step model sets its tempo by as many."""


@dataclass(slots=True)
class GateParts:
    """The parts, and what belongs to none of them.

    Args:
        policy: holds for all; like `max_workers` it can be set while the gate runs.
        known_streams: streams that were carried before the engine began, by a model that has seen steps enough; 0 where
            nothing is known.
        facts: what the engine said of itself last.
        foreign: streams that the gate did not let in.
        looks_at_nothing: how often in a row none of our turns was seen to decode or prefill, though some are inside.
        cold_since: when somebody was first let in on an engine that had just begun.
        waived: when a newcomer was waited for no longer that did not settle, and how long it had been waited for, to be
            told to the next one that waited.
        budget_tokens: the prefill budget that was told last.
        grows, shrinks: how often a worker was let in or taken back; was held, paused or left.
        refused: turns that were told to come back, by reason.
        forgotten: absent workers that gave way to newcomers since the last decision, which tells of them.
    """

    settings: GateSettings
    model: StepModel
    roster: Roster
    queue: FairQueue
    ladder: Ladder
    margin: TurnMargin
    meter: StepMeter
    estimate: DemandEstimate
    forecast: Forecast
    floor_rule: FloorRule
    rule: AdmissionRule
    policy: FloorPolicy
    max_workers: int | None
    known_streams: int = 0
    reach: Reach = field(default_factory=Reach)
    facts: Facts = field(default_factory=Facts)
    foreign: int = 0
    looks_at_nothing: int = 0
    busy_at: float = -inf
    cold_since: float | None = None
    draining: bool = False
    waived: tuple[float, float] | None = None
    budget_tokens: int | None = None
    grows: int = 0
    shrinks: int = 0
    refused: dict[str, int] = field(default_factory=dict[str, int])
    forgotten: list[str] = field(default_factory=list[str])

    @classmethod
    def of(cls, settings: GateSettings, model: StepModel, rule: AdmissionRule | None, seen: Seen | None) -> GateParts:
        """The parts of a gate that nobody has come to yet."""
        floor_rule = FloorRule(settings)
        parts = cls(
            settings=settings,
            model=model,
            roster=Roster(),
            queue=FairQueue(place_kept_s=settings.place_kept_s, due_grace_s=settings.due_grace_s),
            ladder=Ladder(settings),
            margin=TurnMargin(settings.turn_margin, settings.under_share),
            meter=StepMeter(),
            estimate=DemandEstimate(seen),
            forecast=Forecast(model),
            floor_rule=floor_rule,
            rule=rule or floor_rule,
            policy=settings.policy,
            max_workers=settings.max_workers,
        )
        if seen is not None and parts.is_taught:
            parts.known_streams = seen.most_streams
        return parts

    @property
    def is_taught(self) -> bool:
        """Whether the model has learned from enough steps, in all boots, to be believed after a few of this one."""
        return self.model.fit.samples >= self.settings.cold_samples

    @property
    def cold_samples(self) -> int:
        """Steps to be seen before the model is believed: a few where it begins with what an earlier boot learned, which
        tell the tempo that the machine has today."""
        most = self.settings.cold_samples
        return min(_TEMPO_SAMPLES, most) if self.known_streams else most

    @property
    def most_carried(self) -> int:
        """The most streams that several steps have carried, before the engine began as well."""
        return max(self.meter.most_carried, self.known_streams)

    @property
    def streams_to_tell(self) -> int:
        """The most streams carried, for the next boot. What earlier ones carried loses half with each boot that carried
        fewer: one quiet boot does not undo it, and it does not hold for ever on a machine that has changed."""
        carried, known = self.meter.most_carried, self.known_streams
        return max(carried, known // 2) if carried else known

    @property
    def is_ours(self) -> bool:
        """Whether the turn gate, the ladder and the prefill budget work too, or a rule is being compared."""
        return self.rule is self.floor_rule

    def check_integrity(self) -> None:
        """Fails where the parts contradict each other, or themselves."""
        self.roster.check_integrity()
        self.queue.check_integrity()
        assert len(self.queue) == self.roster.queued
        for name, worker in self.roster.workers.items():
            assert (name in self.queue) == (worker.state == "queued")
