"""What the ladder does to workers: holds, pauses, offloads, and takes back.

The clocks are the ladder's, the choice of whom is made here: the newest is held first and comes back last, so that the
oldest always finish. Nobody is ended, and of those that are live one is always left alone.
"""

from __future__ import annotations

from polystem.capacity.actions import Action, Offload, Pause, Resume
from polystem.capacity.parts import GateParts
from polystem.capacity.seating import Seating
from polystem.capacity.workers import Worker

__all__ = ["Relief"]


class Relief:
    """Climbs the ladder and comes down again, one rung at a time."""

    def __init__(self, parts: GateParts, seating: Seating) -> None:
        self._parts = parts
        self._seating = seating

    def act(self, now_s: float) -> list[Action]:
        """The rung that is due now, if any."""
        ladder, roster = self._parts.ladder, self._parts.roster
        if not self._parts.settings.ladder:
            return []
        actions = self._offload(now_s)
        if ladder.pause_due(now_s) and len(roster.running) > 1:
            actions += self._pause_newest(now_s)
        elif ladder.hold_due(now_s) and len(roster.running) + len(roster.waiting) > 1:
            self._hold_newest(now_s)
        elif ladder.return_due(now_s):
            actions += self._take_back(now_s)
        return actions

    def resume_last(self, now_s: float) -> Resume:
        """The last that was paused goes on."""
        parts = self._parts
        worker = next(reversed(parts.roster.paused.values()))
        parts.roster.run(worker, now_s)
        parts.ladder.resumed(now_s)
        parts.grows += 1
        return Resume(worker.name)

    def _pause_newest(self, now_s: float) -> list[Action]:
        """One turn stands still, or as many as it takes by the model to have the others above the pause line."""
        parts, roster = self._parts, self._parts.roster
        line_s = 1 / (parts.settings.pause_line * (self._seating.kept_floor_tps() or 1.0))
        victims = [worker for worker in roster.newest_first() if worker.name in roster.running][:-1]
        actions: list[Action] = []
        for victim in victims:
            if actions and parts.forecast.mean_s(len(roster.running)) <= line_s:
                break
            roster.pause(victim, now_s)
            parts.shrinks += 1
            actions.append(Pause(victim.name))
        parts.ladder.paused(now_s)
        return actions

    def _hold_newest(self, now_s: float) -> None:
        """One worker, or as many as it takes by the model where there are far too many."""
        active = [worker for worker in self._parts.roster.newest_first() if not worker.on_hold]
        one = not self._seating.is_crowded()
        for place, worker in enumerate(active[:-1]):
            if place and (one or self._seating.active_fits()):
                break
            self._hold(worker)
        self._parts.ladder.held(now_s)

    def _hold(self, worker: Worker) -> None:
        worker.on_hold = True
        self._parts.roster.on_hold[worker.name] = worker
        self._parts.shrinks += 1

    def _offload(self, now_s: float) -> list[Action]:
        """Cells of workers that are held are read in every step. Where they are a part worth having they go, once they
        have cost the others as much time as it takes to read them again: whenever their turn comes, no more than twice
        the least possible was lost."""
        roster, forecast, settings = self._parts.roster, self._parts.forecast, self._parts.settings
        actions: list[Action] = []
        step_s = forecast.mean_s(len(roster.running))
        for worker in self._at_rest():
            spared = 1 - forecast.mean_s(len(roster.running), -(worker.cells or 0)) / step_s if step_s > 0 else 0.0
            if worker.cells is None or spared < settings.offload_share:
                continue
            held_s = now_s - (worker.held_at if worker.state == "held" else worker.idle_at)
            again_s = worker.cells * self._parts.model.fit.prompt_token_s(forecast.outside.cells_read)
            if spared * held_s < again_s:
                continue
            worker.offloaded_cells, worker.cells = worker.cells, None
            actions.append(Offload(worker.name))
        return actions

    def _at_rest(self) -> list[Worker]:
        """Workers that are held, of which nothing runs, and whose cells may go: what a window was booked for stays."""
        roster, keep = self._parts.roster, self._parts.facts.window_holders
        idle = (each for each in roster.on_hold.values() if each.name in roster.idle)
        return [each for each in (*roster.waiting.values(), *idle) if each.name not in keep]

    def _take_back(self, now_s: float) -> list[Action]:
        """The last that was paused; else the last whose turns were held, as many at once as newcomers might warm."""
        parts, roster = self._parts, self._parts.roster
        if roster.paused:
            last = next(reversed(roster.paused.values()))
            return [self.resume_last(now_s)] if self._seating.turn_fits(last) else []
        active, brought_cells = len(roster.admitted) - len(roster.on_hold), 0
        for _ in range(parts.floor_rule.warming_most(active)):
            worker = next(reversed(roster.on_hold.values()), None)
            if worker is None:
                break
            brought_cells += worker.offloaded_cells
            if not self._seating.one_more_active_fits(brought_cells):
                break
            del roster.on_hold[worker.name]
            worker.on_hold = False
            parts.ladder.resumed(now_s)
            parts.grows += 1
        return []
