"""The fleet's own knobs."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

from polystem.capacity.policy import GateSettings
from polystem.capacity.step_model import Fit
from polystem.errors import ConfigError

if TYPE_CHECKING:
    from polystem.capacity.gate import AdmissionRule


@dataclass(frozen=True, slots=True)
class FleetSettings:
    """How a fleet shares cells.

    Args:
        auto_pool: a prefix seen twice becomes a pool by itself; requests then also match pools they do not name.
        auto_pool_min_tokens: shortest prefix, and shortest extension of a pool, that is worth a pool.
        pools_max: pools kept at once beside the automatic ones; 0 switches pools off, None leaves it to the sequences.
        pools_per_owner: pools that one session may own at once.
        ephemeral_ttl_s: an ephemeral pool without pin and children that was attached is dropped so long after the last
            turn on it.
        orphan_ttl_s: a pool that nobody ever attached and whose owner is not there is dropped so long after its making.
        auto_pools_max: automatic pools kept at once; the one unused for longest makes room for the next.
        window_ttl_s: a session's window lapses so long after the last request of it or of its workers ended.
        remembered_prompts: finished requests without a session whose prefix still counts as seen.
        remembered_sessions: sessions without cells that are still known by their transcript.
        growth_reserve_tokens: cells booked ahead for a turn without max_tokens. Its booking grows in steps of half this
            number while it decodes; where it cannot grow, that turn alone ends with CellsExhausted.
        second_turn: what a turn does while another of the same session runs: wait for it, or be refused with Conflict.
        prefill_budget_tokens: prompt tokens prefilled in one step while others decode; None leaves it to the engine.
    """

    auto_pool: bool = False
    auto_pool_min_tokens: int = 256
    auto_pools_max: int = 32
    pools_max: int | None = None
    pools_per_owner: int = 8
    ephemeral_ttl_s: float = 60.0
    orphan_ttl_s: float = 300.0
    window_ttl_s: float = 300.0
    remembered_prompts: int = 128
    remembered_sessions: int = 512
    growth_reserve_tokens: int = 512
    second_turn: Literal["wait", "refuse"] = "wait"
    prefill_budget_tokens: int | None = None

    def __post_init__(self) -> None:
        for name, least in (
            ("auto_pool_min_tokens", 1),
            ("auto_pools_max", 1),
            ("pools_per_owner", 1),
            ("remembered_prompts", 0),
            ("remembered_sessions", 0),
            ("growth_reserve_tokens", 2),
        ):
            value: int = getattr(self, name)
            if value < least:
                raise ConfigError(f"{name} is {value}, the least is {least}", hint=f"raise {name}")
        for name in ("ephemeral_ttl_s", "orphan_ttl_s", "window_ttl_s"):
            value_s: float = getattr(self, name)
            if not 0 < value_s < float("inf"):
                raise ConfigError(
                    f"{name} is {value_s:g}, it must be above 0 and finite", hint=f"give seconds as {name}, such as 300"
                )
        if self.pools_max is not None and self.pools_max < 0:
            raise ConfigError(f"pools_max is {self.pools_max}, the least is 0", hint="0 switches pools off")
        if self.pools_max == 0 and self.auto_pool:
            raise ConfigError("auto_pool makes pools, and pools_max 0 forbids them", hint="leave one of them out")
        if self.prefill_budget_tokens is not None and self.prefill_budget_tokens < 1:
            raise ConfigError(f"prefill_budget_tokens is {self.prefill_budget_tokens}, the least is 1")


@dataclass(frozen=True, slots=True)
class FloorSettings:
    """How a fleet keeps a floor. Without a floor and without `max_workers` its gate lets everybody in and counts.

    Args:
        gate: whom the gate lets in.
        admit_wait_s: how long a new worker waits to be let in before it is refused; a request may say otherwise. None
            waits as long as the request lives.
        tick_s: how often the gate looks at the engine while there is anything to do; a view is published each time.
        fit_saved_every_s: how often the fitted step model is stored.
        prior: what the step model starts from where none is stored; None assumes a slow machine.
        rule: decides about newcomers in place of the floor, for comparisons.
    """

    gate: GateSettings = field(default_factory=GateSettings)
    admit_wait_s: float | None = 30.0
    tick_s: float = 0.1
    fit_saved_every_s: float = 30.0
    prior: Fit | None = None
    rule: AdmissionRule | None = None

    def __post_init__(self) -> None:
        if self.admit_wait_s is not None and not self.admit_wait_s >= 0:  # nor is it nan
            raise ConfigError(f"admit_wait_s is {self.admit_wait_s:g}, the least is 0", hint="0 refuses at once")
        for name, least_s in (("tick_s", 0.001), ("fit_saved_every_s", 1.0)):
            value_s: float = getattr(self, name)
            if not least_s <= value_s < float("inf"):
                raise ConfigError(
                    f"{name} is {value_s:g}, the least is {least_s:g} s, and it must be finite",
                    hint=f"give seconds as {name}",
                )
