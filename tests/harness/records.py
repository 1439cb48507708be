"""Small records, written by hand, for tests of what reads them."""

from __future__ import annotations

from dataclasses import replace

from polystem.harness.record import Record
from polystem.harness.rows import ArmRow, ForeignRow, Manifest, PackageRow, RetryRow, Row, SampleRow, ToolRow, TurnRow

MANIFEST = Manifest(
    started_at="2026-01-02T03:04:05+00:00",
    seed=7,
    packages=2,
    steps=2,
    mode="model",
    arms=("pooled",),
    concurrency=2,
    prefix_tokens=100,
    prefix_counted_by="tokens",
    model={"name": "courier-nano", "sha256": "ab" * 32, "quant": "F16"},
    engine={"build": "b1", "threads": 2},
    machine={"processor": "a processor", "cores": 2},
    versions={"polystem": "0", "python": "3.11"},
    arguments={"steps": 2},
    server="own",
)
TURN = TurnRow(
    arm="pooled",
    package=0,
    turn=0,
    step=0,
    submitted_s=0.0,
    admitted_s=0.5,
    first_token_s=1.0,
    last_token_s=3.0,
    prompt_tokens=120,
    cached_tokens=100,
    shared_tokens=100,
    output_tokens=21,
    decode_tps=10.0,
    finish_reason="tool_calls",
    attempts=1,
    timed_by="server",
    pool_unknown=False,
    arrivals=((0.0, 21),),
)
TOOL = ToolRow("pooled", 0, 0, 0, "collect", 3.0, 3.5, ok=True, cause=None)
RETRY = RetryRow("pooled", 0, 1, 3.5, "engine_died", "the engine ended", advised_s=2.0, waited_s=2.0)
PACKAGE = PackageRow(
    arm="pooled",
    package=0,
    package_id="12345",
    submitted_s=0.0,
    admitted_s=0.5,
    ended_s=8.5,
    outcome="delivered",
    cause=None,
    detail="",
    steps=2,
    steps_taken=2,
    turns=2,
    errors=0,
)
DROPPED = replace(
    PACKAGE,
    package=1,
    package_id="54321",
    admitted_s=2.5,
    ended_s=6.5,
    outcome="dropped",
    cause="cross_talk",
    detail="error 5 of 5: deliver {}",
    errors=5,
    steps_taken=1,
)
SAMPLE = SampleRow(
    arm="pooled",
    at_s=1.0,
    live=2,
    queued=0,
    decoding=2,
    tools=0,
    cells_total=1000,
    cells_used=150,
    cells_pool=100,
    cells_private=50,
    naive_cells=250,
    tokens_decoded=40,
)
FOREIGN = ForeignRow("pooled", stream=0, started_s=1.0, ended_s=2.0, output_tokens=16, error="")
ROWS: tuple[Row, ...] = (
    ArmRow("pooled", "start", 0.0, 100, 0, 0.25),
    TURN,
    TOOL,
    RETRY,
    SAMPLE,
    FOREIGN,
    PACKAGE,
    DROPPED,
    ArmRow("pooled", "end", 9.0, 100, 0, 0.25),
)
RECORD = Record(MANIFEST, ROWS)
