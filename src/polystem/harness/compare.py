"""Compares two sides figure by figure: ratios of pairs, their intervals, and no more than these show.

Knows no server. Invariant: nothing is said to differ whose interval holds 1.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path

import orjson

from polystem.errors import ConfigError
from polystem.harness.comparison import Compared, Comparison, DeliveredPairs, PairedBy, Side
from polystem.harness.intervals import log_ratio
from polystem.harness.measures import MEASURES, Better
from polystem.harness.metrics import summarise
from polystem.harness.rates import decode_windows, strict_tps
from polystem.harness.record import Record, built, json_object
from polystem.harness.rows import PackageRow, ToolRow, TurnRow
from polystem.harness.sides import Repeats, differences, unequal_work
from polystem.harness.verdict import ALPHA, mcnemar

__all__ = ["COMPARISON_NAME", "compare", "read_comparison", "write_comparison"]

COMPARISON_NAME = "compare.json"
COMPARISON_VERSION = 2


def compare(a: Repeats, b: Repeats, *, allowed: Sequence[str] = ()) -> Comparison:
    """A against B. `allowed` names fields, or the first word of several, that may differ.

    Raises ConfigError where the two did not do the same work under the same conditions, naming every such field.
    """
    differ = differences(a, b)
    refused = {name: pair for name, pair in differ.items() if not _is_allowed(name, allowed)}
    if refused:
        told = "; ".join(f"{name} is {ours!r} and {theirs!r}" for name, (ours, theirs) in refused.items())
        fields = " ".join(f"--allow {name}" for name in refused)
        raise ConfigError(
            f"{a.name} and {b.name} cannot be compared: {told}", hint=f"where that is meant, add {fields}"
        )
    unequal = unequal_work(a, b)
    if unequal is not None:
        raise ConfigError(f"{a.name} and {b.name} cannot be compared: the replays did other work: {unequal}")
    paired_by: PairedBy = "repeat" if min(len(a.records), len(b.records)) > 1 else "package"
    figures = _of_repeats(a, b) if paired_by == "repeat" else _of_packages(a, b)
    return Comparison(
        a=_side(a),
        b=_side(b),
        paired_by=paired_by,
        figures=figures,
        delivered=_delivered(a, b),
        allowed=tuple(name for name in differ if name not in refused),
        cautions=_cautions(a, b, paired_by),
    )


def _is_allowed(name: str, allowed: Sequence[str]) -> bool:
    return name in allowed or name.partition(".")[0] in allowed


def _side(side: Repeats) -> Side:
    return Side(
        name=side.name,
        arm=side.arm,
        runs=len(side.records),
        delivered=sum(row.outcome == "delivered" for _, row in side.packages()),
        packages=sum(each.manifest.packages for each in side.records),
        crossed=sum(call.cause == "cross_talk" for each in side.records for call in each.of(ToolRow, side.arm)),
    )


def _of_repeats(a: Repeats, b: Repeats) -> tuple[Compared, ...]:
    pairs = [
        (summarise(ours, a.arm), summarise(theirs, b.arm)) for ours, theirs in zip(a.records, b.records, strict=False)
    ]
    found: list[Compared] = []
    for each in MEASURES:
        if each.better is None:
            continue
        values = [(each.of(ours), each.of(theirs)) for ours, theirs in pairs]
        known = [(ours, theirs) for ours, theirs in values if ours and theirs]
        if len(known) == len(values):
            found.append(_compared(each.name, each.unit, each.better, "repeat", known))
    return tuple(found)


def _of_packages(a: Repeats, b: Repeats) -> tuple[Compared, ...]:
    ours, theirs = _by_package(a), _by_package(b)
    both = sorted(ours.keys() & theirs.keys())
    found: list[Compared] = []
    for name, unit, better in _PACKAGE_FIGURES:
        known = [
            (left, right)
            for package in both
            if (left := ours[package].get(name)) and (right := theirs[package].get(name))
        ]
        if known:
            found.append(_compared(name, unit, better, "package", known))
    return tuple(found)


_PACKAGE_FIGURES: tuple[tuple[str, str, Better], ...] = (
    ("delivery from submission", "s", "less"),
    ("delivery from admission", "s", "less"),
    ("stream rate", "tokens/s", "more"),
    ("strict rate", "tokens/s", "more"),
    ("prefilled", "tokens", "less"),
)


def _by_package(side: Repeats) -> dict[int, Mapping[str, float | None]]:
    """The figures of every delivered package of a side's first repeat."""
    record = side.records[0]
    turns: dict[int, list[TurnRow]] = {}
    for turn in record.of(TurnRow, side.arm):
        turns.setdefault(turn.package, []).append(turn)
    return {
        row.package: _package_figures(row, turns.get(row.package, []))
        for row in record.of(PackageRow, side.arm)
        if row.outcome == "delivered"
    }


def _package_figures(row: PackageRow, turns: Sequence[TurnRow]) -> Mapping[str, float | None]:
    windows = decode_windows(turns)
    decode_s = sum(window.duration_s for window in windows)
    tokens = sum(window.rate_tps * window.duration_s for window in windows)
    return {
        "delivery from submission": row.ended_s - row.submitted_s,
        "delivery from admission": None if row.admitted_s is None else row.ended_s - row.admitted_s,
        "stream rate": tokens / decode_s if decode_s else None,
        "strict rate": strict_tps(turns),
        "prefilled": float(sum(turn.prompt_tokens - turn.cached_tokens for turn in turns)),
    }


def _compared(
    name: str, unit: str, better: Better, paired_by: PairedBy, pairs: Sequence[tuple[float, float]]
) -> Compared:
    ours, theirs = tuple(left for left, _ in pairs), tuple(right for _, right in pairs)
    ratio = log_ratio(ours, theirs)
    verdict = ratio.verdict if ratio.verdict == "NOT DISTINGUISHED" else f"A {ratio.verdict}"
    return Compared(name, unit, better, paired_by, ours, theirs, ratio, verdict)


def _delivered(a: Repeats, b: Repeats) -> DeliveredPairs:
    """Every package of every repeat that both sides have, by what became of it."""
    ours, theirs = ({(repeat, row.package): row.outcome == "delivered" for repeat, row in side.packages()}
                    for side in (a, b))  # fmt: skip
    both = ours.keys() & theirs.keys()
    lost = sum(theirs[key] and not ours[key] for key in both)
    won = sum(ours[key] and not theirs[key] for key in both)
    p_value = mcnemar(lost, won)
    return DeliveredPairs(
        both=sum(ours[key] and theirs[key] for key in both),
        neither=sum(not ours[key] and not theirs[key] for key in both),
        lost=lost,
        won=won,
        p_value=p_value,
        verdict="DEGRADED" if p_value <= ALPHA else "NOT DISTINGUISHED",
    )


def _cautions(a: Repeats, b: Repeats, paired_by: PairedBy) -> tuple[str, ...]:
    found: list[str] = []
    if paired_by == "package":
        found.append(
            "one run on a side: packages of one run share its machine and its moment, so these intervals say how "
            "packages differ within these two runs, not what another run would give; repeat the runs to claim that"
        )
    if len(a.records) != len(b.records):
        found.append(f"A has {len(a.records)} repeats and B {len(b.records)}; those without a partner are left out")
    found += [f"{name} is {ours} and {theirs}" for name, ours, theirs in _versions(a.records[0], b.records[0])]
    if any(each.manifest.mode == "model" for each in (*a.records, *b.records)):
        found.append("in mode model the sides may have decoded other tokens; use --mode replay to compare times")
    return tuple(found)


def _versions(a: Record, b: Record) -> list[tuple[str, object, object]]:
    ours, theirs = a.manifest.versions, b.manifest.versions
    names = sorted(ours.keys() | theirs.keys())
    return [(name, ours.get(name), theirs.get(name)) for name in names if ours.get(name) != theirs.get(name)]


def write_comparison(folder: Path, comparison: Comparison) -> None:
    """Writes `compare.json` into a folder that exists."""
    body = {"v": COMPARISON_VERSION, "kind": "comparison"} | asdict(comparison)
    (folder / COMPARISON_NAME).write_bytes(orjson.dumps(body, option=orjson.OPT_INDENT_2) + b"\n")


def read_comparison(folder: Path) -> Comparison:
    """Reads the comparison in a folder. Raises RecordError where it is missing, damaged or newer."""
    path = folder / COMPARISON_NAME
    return built(Comparison, json_object(path, kind="comparison", version=COMPARISON_VERSION), str(path))
