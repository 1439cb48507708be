"""How many prompt tokens a step may prefill beside those who decode: as many as the floor leaves room for."""

from __future__ import annotations

from polystem.capacity.actions import Action, SetBudget
from polystem.capacity.parts import GateParts
from polystem.capacity.seating import Seating
from polystem.capacity.step_model import StepLoad

__all__ = ["PrefillBudget"]


class PrefillBudget:
    """Tells the budget where it has changed by more than a little; what was told last is among the parts."""

    def __init__(self, parts: GateParts, seating: Seating) -> None:
        self._parts = parts
        self._seating = seating

    def act(self) -> list[Action]:
        """What is to be told now. Without a floor nothing is, until there was one."""
        parts = self._parts
        floor_tps = self._seating.kept_floor_tps() if parts.is_ours else None
        before = parts.budget_tokens
        if floor_tps is None and before is None:
            return []
        tokens = parts.settings.chunk_max_tokens if floor_tps is None else self._tokens_at(floor_tps)
        if before is not None and abs(tokens - before) * 8 <= before:
            return []
        parts.budget_tokens = tokens
        return [SetBudget(tokens)]

    def _tokens_at(self, floor_tps: float) -> int:
        parts, settings = self._parts, self._parts.settings
        cells_read = parts.forecast.outside.cells_read
        least = parts.model.least_prefill_tokens(
            cells_read, floor_tps, share=settings.chunk_min_share, least=settings.chunk_min_tokens
        )
        if parts.ladder.under:
            return least
        decoding = parts.facts.decoding + int(parts.facts.decoding > 0 and parts.facts.prefilling > 0)
        return parts.model.prefill_budget_tokens(
            StepLoad(decoding, cells_read), floor_tps, least=least, most=settings.chunk_max_tokens
        )
