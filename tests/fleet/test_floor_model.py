"""Where the step model starts, and that what it learned is there the next time."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from polystem.capacity.demand import Seen
from polystem.capacity.fits import FitStore, StoredFit
from polystem.capacity.floor import Demand
from polystem.capacity.step_model import Fit, StepLoad
from polystem.clock import VirtualClock
from polystem.engine.protocol import EngineInfo
from polystem.engine.scripted import ScriptedEngine
from polystem.fleet import FloorSettings
from polystem.fleet.floor_model import ASSUMED_BANDWIDTH_BYTES_S, FitKeeper, fit_key, pessimistic_fit
from tests.fleet.support import Machine, asking, begun, keeping, staged

pytestmark = pytest.mark.anyio

SEEN = Seen(Demand(3.0, 70.0), final_cells=800.0, cells_per_token=1.2, most_streams=9)
FIT = Fit(0.03, 0.002, 1e-6, 1e-4, deviations=(1e-3, 1e-4, 1e-7, 1e-5), samples=500, noise_s=1e-3)


async def info() -> EngineInfo:
    engine = ScriptedEngine()
    await engine.start()
    try:
        return engine.info
    finally:
        await engine.aclose()


def stored(engine: EngineInfo, **fields: object) -> StoredFit:
    entry = StoredFit(fit_key(engine), engine.model, FIT, SEEN, cells_total=engine.cells_total, at_s=5.0)
    return replace(entry, **fields)  # pyright: ignore[reportArgumentType]


async def test_a_stored_fit_of_the_same_engine_is_the_start(tmp_path: Path) -> None:
    engine, fits = await info(), FitStore(tmp_path / "fits.json")
    fits.put(stored(engine))
    model, seen = FitKeeper(engine, FloorSettings(), fits, VirtualClock()).start()
    assert model.mean_s(StepLoad(4, 1000)) == pytest.approx(FIT.mean_s(StepLoad(4, 1000)), rel=1e-6)
    assert seen == SEEN


@pytest.mark.parametrize("part", ["model_sha256", "build", "machine", "kv"])
async def test_a_fit_of_something_else_is_not_used(tmp_path: Path, part: str) -> None:
    engine, fits = await info(), FitStore(tmp_path / "fits.json")
    fits.put(stored(engine, key=replace(fit_key(engine), **{part: "another"})))
    model, seen = FitKeeper(engine, FloorSettings(), fits, VirtualClock()).start()
    guess = pessimistic_fit(engine)
    assert model.mean_s(StepLoad(1, 0)) == pytest.approx(guess.mean_s(StepLoad(1, 0)), rel=1e-6)
    assert seen is None


async def test_a_prior_of_the_settings_takes_the_place_of_the_guess(tmp_path: Path) -> None:
    engine = await info()
    model, _ = FitKeeper(engine, FloorSettings(prior=FIT), FitStore(tmp_path / "fits.json"), VirtualClock()).start()
    assert model.mean_s(StepLoad(1, 0)) == pytest.approx(FIT.mean_s(StepLoad(1, 0)), rel=1e-6)


async def test_the_guess_knows_the_sizes_that_the_engine_tells() -> None:
    engine = await info()
    told = replace(engine, settings={"weight_bytes": 16_000_000_000, "kv_bytes_per_cell": 80_000})
    expected = Fit.pessimistic(weight_bytes=16e9, kv_bytes_per_cell=80_000, bandwidth_bytes_s=ASSUMED_BANDWIDTH_BYTES_S)
    assert pessimistic_fit(told) == expected
    assert expected.base_s > 10 * pessimistic_fit(engine).base_s
    for wrong in (None, 0, True, "many"):
        assert pessimistic_fit(replace(engine, settings={"weight_bytes": wrong})) == pessimistic_fit(engine)


async def test_the_same_model_with_other_cells_has_another_fit() -> None:
    engine = await info()
    keys = {
        fit_key(replace(engine, settings={"cache_type_k": kind, "cache_type_v": "f16", "flash_attention": flash})).kv
        for kind in ("f16", "q8_0")
        for flash in (True, False)
    }
    assert len(keys) == 4


async def test_what_was_learned_is_stored_while_it_runs_and_at_the_end(tmp_path: Path) -> None:
    path = tmp_path / "fits.json"
    machine = Machine(per_stream_s=0.02)
    async with staged(step_cost=machine, floor=keeping(5.0), fits=FitStore(path)) as stage:
        task = begun(stage, asking("a", 900))
        await stage.passes(29.0)
        assert not path.exists()
        await stage.until(path.exists)
        (early,) = FitStore(path).entries()
        await stage.until(task.done)
    (late,) = FitStore(path).entries()
    assert late.fit.samples > early.fit.samples
    assert late.fit.mean_s(StepLoad(1, 0)) == pytest.approx(0.04, rel=0.2)
    assert (late.cells_total, late.seats_total, late.model) == (2048, 16, "scripted")


async def test_a_boot_that_taught_nothing_leaves_the_file_alone(tmp_path: Path) -> None:
    path = tmp_path / "fits.json"
    async with staged(floor=keeping(5.0), fits=FitStore(path)) as stage:
        await stage.steps(40)
    assert not path.exists()


async def test_a_file_that_cannot_be_written_costs_nothing_but_a_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    blocked = tmp_path / "file"
    blocked.write_text(json.dumps({}), "utf-8")
    async with staged(step_cost=Machine(), floor=keeping(5.0), fits=FitStore(blocked / "fits.json")) as stage:
        task = begun(stage, asking("a", 20))
        await stage.until(task.done)
        assert stage.fleet.statistics().floor_faults == 0
    assert "is not kept" in caplog.text
