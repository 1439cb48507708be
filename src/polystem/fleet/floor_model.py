"""Where the step model starts, and where it is kept.

A fit belongs to one model file, engine build, machine and cell type. Where none is stored, the model starts from memory
traffic on a slow machine, and learns better within tens of steps.
Invariant: what is stored was learned from steps of this boot; a boot that taught nothing leaves the file as it is.
"""

from __future__ import annotations

import asyncio
import logging

from polystem.capacity.demand import Seen
from polystem.capacity.fits import FitKey, FitStore, StoredFit
from polystem.capacity.step_model import Fit, StepModel, StepModelSettings
from polystem.clock import Clock
from polystem.engine.machine import this_machine
from polystem.engine.protocol import EngineInfo
from polystem.errors import ConfigError
from polystem.fleet.settings import FloorSettings

ASSUMED_BANDWIDTH_BYTES_S = 8e9
"""Of one slow memory channel: better to begin below what the machine can do."""

ASSUMED_WEIGHT_BYTES = 500_000_000
ASSUMED_CELL_BYTES = 32_768

_log = logging.getLogger(__name__)


class FitKeeper:
    """The stored fit of one engine. Without a file it stores nothing."""

    def __init__(self, info: EngineInfo, settings: FloorSettings, fits: FitStore | None, clock: Clock) -> None:
        self._info = info
        self._settings = settings
        self._fits = fits
        self._clock = clock
        self._key = fit_key(info) if fits is not None else None
        self._saved_at = clock.now_s()
        self._saved_samples = 0

    def start(self) -> tuple[StepModel, Seen | None]:
        """A model that begins with the stored fit, else with the settings' prior, else with a pessimistic guess.

        Beside it what was seen of workers when it was stored.
        """
        stored = self._fits.find(self._key) if self._fits is not None and self._key is not None else None
        fit = stored.fit if stored is not None else self._settings.prior or pessimistic_fit(self._info)
        model = StepModel(fit, StepModelSettings(upper_z=self._settings.gate.upper_z))
        return model, None if stored is None else stored.seen

    async def save_when_due(self, model: StepModel, seen: Seen | None) -> None:
        """Stores the fit where `fit_saved_every_s` have passed since it was stored last."""
        if self._clock.now_s() - self._saved_at >= self._settings.fit_saved_every_s:
            self._saved_at = self._clock.now_s()
            await self.save(model, seen)

    async def save(self, model: StepModel, seen: Seen | None) -> None:
        """Stores the fit, off the event loop. A file that cannot be written is told of and costs nothing else."""
        if self._fits is None or self._key is None or model.samples == self._saved_samples:
            return
        samples = model.samples
        info = self._info
        entry = StoredFit(
            key=self._key,
            model=info.model,
            fit=model.fit,
            seen=seen,
            cells_total=info.cells_total,
            at_s=self._clock.wall_s(),
            seats_total=info.sequences_total,
        )
        try:
            await asyncio.to_thread(self._fits.put, entry)
        except ConfigError as error:
            _log.warning("the fitted step model is not kept: %s", error.message)
        else:
            self._saved_samples = samples


def fit_key(info: EngineInfo) -> FitKey:
    """What the fits of this engine on this machine are kept under."""
    told = (info.settings.get(name) for name in ("cache_type_k", "cache_type_v", "flash_attention"))
    return FitKey(
        model_sha256=info.model_sha256,
        build=info.build,
        machine=this_machine().name,
        kv="/".join(str(each) for each in told if each is not None) or "unknown",
    )


def pessimistic_fit(info: EngineInfo) -> Fit:
    """A guess from the sizes that the engine tells, or from those of a small model where it tells none."""
    return Fit.pessimistic(
        weight_bytes=_told(info, "weight_bytes", ASSUMED_WEIGHT_BYTES),
        kv_bytes_per_cell=_told(info, "kv_bytes_per_cell", ASSUMED_CELL_BYTES),
        bandwidth_bytes_s=ASSUMED_BANDWIDTH_BYTES_S,
    )


def _told(info: EngineInfo, name: str, otherwise: int) -> float:
    value = info.settings.get(name)
    if isinstance(value, bool) or not isinstance(value, int | float) or value <= 0:
        return float(otherwise)
    return float(value)
