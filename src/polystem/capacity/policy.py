"""What the operator asks for: the floor, how strictly it is kept, and the gate's knobs.

Values only. Units: rates in tokens per second of one stream, times in seconds, shares from 0 to 1.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

from polystem.capacity.margin import LEAST
from polystem.errors import ConfigError

__all__ = ["FloorPolicy", "GateSettings", "Mode", "OnSaturation"]

Mode: TypeAlias = Literal["advisory", "enforced"]
OnSaturation: TypeAlias = Literal["reject", "warn"]


def _check_range(name: str, value: float | None, least: float, most: float, *, none: str | None = None) -> None:
    """Raises ConfigError out of range; `none` says what leaving the value out stands for, where that may be meant."""
    if value is not None and not least <= value <= most:
        side = "raise" if value < least else "lower" if value > most else "give a number as"
        instead = f", or leave it out for {none}" if none and value < least else ""
        raise ConfigError(f"{name} is {value:g}, it must be from {least:g} to {most:g}", hint=f"{side} {name}{instead}")


def _check_one_of(name: str, value: str, known: tuple[str, ...]) -> None:
    if value not in known:
        raise ConfigError(
            f"{name} is {value!r}, it must be one of {', '.join(known)}", hint=f"set it to {' or '.join(known)}"
        )


@dataclass(frozen=True, slots=True)
class FloorPolicy:
    """The floor of one worker, or of all.

    Args:
        floor_tps: what each stream is to keep; None asks for nothing.
        mode: `advisory` refuses nobody and only tells what binds.
        on_saturation: of an enforced floor: make a newcomer wait, or let it in with a warning.
        guarantee_min_sessions: so many workers are let in below the floor.
        settle_tokens: a worker is warming until it has decoded so many tokens, or `settle_s` seconds have passed.
        prefill_max_slots: new workers wait while so many turns prefill; None sets no limit.
    """

    floor_tps: float | None = None
    mode: Mode = "enforced"
    on_saturation: OnSaturation = "reject"
    guarantee_min_sessions: int = 1
    settle_tokens: int = 24
    settle_s: float = 15.0
    prefill_max_slots: int | None = None

    def __post_init__(self) -> None:
        _check_one_of("floor_mode", self.mode, ("advisory", "enforced"))
        _check_one_of("on_saturation", self.on_saturation, ("reject", "warn"))
        _check_range("floor_tps", self.floor_tps, 1e-3, 1e6, none="no floor")
        _check_range("guarantee_min_sessions", self.guarantee_min_sessions, 1, 1_000_000)
        _check_range("settle_tokens", self.settle_tokens, 0, 1_000_000)
        _check_range("settle_s", self.settle_s, 0, 3600)
        _check_range("prefill_max_slots", self.prefill_max_slots, 1, 1_000_000, none="no limit")

    @property
    def waits(self) -> bool:
        """Whether a newcomer that the floor has no room for waits; else it is let in and told."""
        return self.floor_tps is not None and self.mode == "enforced" and self.on_saturation == "reject"


@dataclass(frozen=True, slots=True)
class GateSettings:
    """The gate's knobs. Without a floor and without `max_workers` it lets everybody in and counts.

    Args:
        policy: holds for whoever brings none of its own.
        max_workers: a fixed limit besides the floor.
        queue_limit: workers that may wait for their first turn, absent ones included. Where there are more, an absent
            one gives way that did not come when it was told to, or whose tenant has more absent than the newcomer's has
            waiting; else the newcomer is refused.
        under_share: eps, the share of stream time that may be under the floor.
        upper_z: standard deviations added to a predicted step.
        hysteresis: h; a worker is let in below eps * (1 - h).
        cell_line: share of all cells that admissions may fill.
        warming_share: share of the live workers that may warm at once (at least one).
        cold_samples: steps to be seen before a second worker is let in, where no earlier boot has seen as many.
        held_most_s: a turn that was held for so long goes before those of older workers.
        hold_after_s: this long under the floor before a worker is held, and between two that are.
        cool_after_resume_s: pause after a worker came back before the next may.
        cool_after_hold_s: pause after a hold before anybody comes back.
        under_line: share of the floor below which the ladder is climbed.
        pause_line: share of the floor below which turns are paused in mid-decode.
        pause_under_after_s: this long under the line before turns are paused above `pause_line` as well.
        crowded_share: as many are put on hold at once as it takes to predict a share under the floor below this.
        offload_share: cells of a worker that is held go where they take this share of a step, once they have cost the
            others as much time as reading them again will.
        growth_s: a newcomer is judged by the cells that there will be on the way to its end, or within so long where
            none was seen to end.
        least_gain: with one more, all together have to decode this part of what fewer would; asked for the first time
            beyond `gain_after_workers`.
        turn_margin: a turn begins where the predicted step takes this part of what the floor allows; it moves with how
            often the floor is missed.
        chunk_min_tokens: least prefill in a step, whatever the floor says; where so much takes more than
            `chunk_min_share` of a step at the floor, as much as takes that.
        chunk_max_tokens: most prefill in a step.
        session_ttl_s: an idle live worker is counted as done after so long, unless it holds a window.
        place_kept_s: an absent queued worker keeps its place so long.
        due_grace_s: a seat is kept for the first in the queue so long before and after the moment that its retry was
            promised for.
        turn_gate: hold a continuation whose decoding would push the others under the floor.
        ladder: hold and pause workers while the measured rate is under the floor.
        rows: workers listed one by one in a view.
    """

    policy: FloorPolicy = FloorPolicy()
    max_workers: int | None = None
    queue_limit: int = 1024
    under_share: float = 0.05
    upper_z: float = 1.64
    hysteresis: float = 0.08
    cell_line: float = 0.90
    warming_share: float = 0.25
    cold_samples: int = 40
    held_most_s: float = 20.0
    hold_after_s: float = 4.0
    cool_after_resume_s: float = 2.0
    cool_after_hold_s: float = 6.0
    under_line: float = 0.95
    pause_line: float = 0.5
    pause_under_after_s: float = 12.0
    crowded_share: float = 0.5
    offload_share: float = 0.02
    turn_margin: float = 0.97
    growth_s: float = 10.0
    least_gain: float = 1.0
    gain_after_workers: int = 4
    chunk_min_tokens: int = 32
    chunk_min_share: float = 0.5
    chunk_max_tokens: int = 512
    session_ttl_s: float = 300.0
    place_kept_s: float = 300.0
    due_grace_s: float = 5.0
    turn_gate: bool = True
    ladder: bool = True
    rows: int = 256

    def __post_init__(self) -> None:
        _check_range("max_workers", self.max_workers, 1, 1_000_000, none="no limit")
        _check_range("queue_limit", self.queue_limit, 0, 1_000_000)
        for name, least, most in (
            ("under_share", 0.0, 1.0),
            ("upper_z", 0.0, 10.0),
            ("hysteresis", 0.0, 0.9),
            ("cell_line", 0.05, 1.0),
            ("warming_share", 0.0, 1.0),
            ("cold_samples", 0, 100_000),
            ("held_most_s", 0.0, 3600.0),
            ("hold_after_s", 0.0, 3600.0),
            ("cool_after_resume_s", 0.0, 3600.0),
            ("cool_after_hold_s", 0.0, 3600.0),
            ("under_line", 0.1, 1.0),
            ("pause_line", 0.05, 1.0),
            ("pause_under_after_s", 0.0, 3600.0),
            ("crowded_share", 0.0, 1.0),
            ("offload_share", 0.0, 1.0),
            ("turn_margin", LEAST, 0.99),
            ("growth_s", 0.0, 3600.0),
            ("least_gain", 0.05, 1.0),
            ("gain_after_workers", 1, 1_000_000),
            ("chunk_min_tokens", 1, 1_000_000),
            ("chunk_min_share", 0.0, 1e6),
            ("chunk_max_tokens", self.chunk_min_tokens, 1_000_000),
            ("session_ttl_s", 1.0, 1e7),
            ("place_kept_s", 1.0, 1e7),
            ("due_grace_s", 0.0, 3600.0),
            ("rows", 0, 100_000),
        ):
            _check_range(name, getattr(self, name), least, most)
