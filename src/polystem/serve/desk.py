"""What every route of one app shares: the fleet, the settings, the clock, the meters, and who this server is."""

from __future__ import annotations

import secrets
from collections.abc import Coroutine
from dataclasses import dataclass, field
from typing import Any, TypeVar

from starlette.types import Receive

from polystem.clock import Clock
from polystem.engine.protocol import EngineInfo
from polystem.errors import BadRequest, ModelNotFound
from polystem.fleet import Fleet
from polystem.serve.bounded import run_bounded
from polystem.serve.metrics import Metrics
from polystem.serve.moved_lines import NO_RULE, LineRule
from polystem.serve.session_ids import SessionNames
from polystem.serve.settings import ServeSettings

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Desk:
    """One app's belongings. `boot_id` and `started_at` (seconds since 1970) never change while the app lives."""

    fleet: Fleet
    settings: ServeSettings
    clock: Clock
    metrics: Metrics
    boot_id: str
    started_at: int
    session_names: SessionNames = field(default_factory=SessionNames)
    line_rule: LineRule = NO_RULE

    def info_for(self, model: str | None) -> EngineInfo:
        """The engine's facts, for a request that names `model`. Raises ModelNotFound, EngineStarting."""
        info = self.fleet.engine.info
        if model is not None and model != info.model and model not in self.settings.model_aliases:
            raise ModelNotFound(model, info.model)
        return info

    def check_wait(self, admit_wait_s: float | None) -> None:
        """Raises BadRequest for a wait that the request's time limit would cut short."""
        limit_s = self.settings.request_timeout_s
        if admit_wait_s is not None and admit_wait_s >= limit_s:
            raise BadRequest(
                f"Field 'admit_wait_s': {admit_wait_s:g} is not below the {limit_s:g} s that one request may take; "
                "wait less, and ask again with the same session_id: its place is kept",
                param="admit_wait_s",
            )

    def new_id(self, kind: str) -> str:
        return f"{kind}-{secrets.token_hex(12)}"

    async def bounded(self, work: Coroutine[Any, Any, T], receive: Receive) -> T:
        """Runs `work` under the request's time limit and as long as its client stays."""
        return await run_bounded(work, receive=receive, clock=self.clock, limit_s=self.settings.request_timeout_s)
