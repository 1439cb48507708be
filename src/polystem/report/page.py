"""The report: one HTML page with its styles, scripts, chart library and data inside.

Knows no server. Invariant: the page loads nothing, and says everything without scripts too.
"""

from __future__ import annotations

from collections.abc import Sequence
from importlib.resources import files
from typing import Any

from polystem.harness.figures import figures_of, headline, reduction_lines
from polystem.harness.metrics import ArmSummary, summarise_all
from polystem.harness.record import Record
from polystem.harness.rows import Manifest
from polystem.report.html import element, embedded_json, picture, table
from polystem.report.series import CellsAt, PackageLine, StepRate, cells_over_time, package_lines, step_rates

__all__ = ["report_html"]

CELL_TABLE_ROWS = 60
NOTICES = ("echarts-NOTICE", "echarts-LICENSE", "echarts-LICENSE-d3", "zrender-LICENSE")
POLICY = "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; img-src data:"


def report_html(record: Record) -> str:
    """The whole page."""
    summaries = summarise_all(record)
    arms = record.arms()
    lines = {arm: package_lines(record, arm) for arm in arms}
    rates = {arm: step_rates(record, arm) for arm in arms}
    cells = {arm: cells_over_time(record, arm) for arm in arms}
    body = [
        _verdict(record, summaries),
        _figures(summaries),
        *(_time_line(arm, lines[arm]) for arm in arms),
        _rates(rates),
        _cells(cells),
        _settings(record.manifest),
        _notices(),
    ]
    return _document("".join(body), _data(lines, rates, cells))


def _document(body: str, data: str) -> str:
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        f'<meta http-equiv="Content-Security-Policy" content="{POLICY}">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f'<title>Courier report</title><link rel="icon" href="data:,"><style>{_asset("page.css")}</style></head>'
        f"<body><main>{body}</main>{data}<script>{_asset('vendor/echarts.min.js')}</script>"
        f"<script>{_asset('page.js')}</script></body></html>\n"
    )


def _asset(name: str) -> str:
    return (files("polystem.report") / name).read_text("utf-8")


def _verdict(record: Record, summaries: Sequence[ArmSummary]) -> str:
    manifest = record.manifest
    whole = len(summaries) == len(manifest.arms) and all(summary.whole for summary in summaries)
    lines = reduction_lines(manifest, summaries)
    cut = element("p", "The run was stopped before its end: this is what it had recorded.", class_="cut")
    return (
        f'<header class="{"good" if whole else "bad"}">{element("p", "Courier report", class_="kicker")}'
        f"{element('h1', headline(manifest, summaries))}{cut if record.unfinished else ''}"
        f"{''.join(element('p', line) for line in lines)}{element('p', _what_ran(manifest), class_='what')}</header>"
    )


def _what_ran(manifest: Manifest) -> str:
    machine = manifest.machine
    return (
        f"{manifest.model.get('name')}, mode {manifest.mode}: {manifest.packages} packages of {manifest.steps} steps, "
        f"{manifest.concurrency} at a time, P = {manifest.prefix_tokens} tokens, seed {manifest.seed}; "
        f"{machine.get('cpu', 'unknown processor')}, {machine.get('cores', '?')} cores; {manifest.started_at}."
    )


def _figures(summaries: Sequence[ArmSummary]) -> str:
    head = ["figure", *(summary.arm for summary in summaries), "what it means"]
    rows = [(figure.name, *figure.texts, figure.meaning) for figure in figures_of(summaries)]
    figures = table(head, rows, caption="Figures of each arm")
    return f'<section class="figures">{element("h2", "Figures")}{figures}</section>'


def _time_line(arm: str, lines: Sequence[PackageLine]) -> str:
    head = ["package", "end", "steps", "turns", "wrong calls", "queue", "prefill", "decode", "tools", "after"]
    return picture(
        f"line-{arm}",
        f"Packages over time: {arm}",
        "One bar for each package, from its submission: waiting, prefill, decode, tools. Gaps are the harness itself.",
        table(head, map(_package_row, lines), caption=f"Packages of the arm {arm}; times in seconds"),
    )


def _package_row(line: PackageLine) -> list[str]:
    spent = [f"{line.spent_s(phase):.2f}" for phase in ("queue", "prefill", "decode", "tools")]
    row = line.row
    if row is None:
        return [str(line.package), "not ended", "-", "-", "-", *spent, "-"]
    end = row.outcome if row.cause is None else f"dropped: {row.cause} ({row.detail})"
    steps = f"{row.steps_taken} of {row.steps}"
    name = f"{line.package} ({row.package_id})"
    return [name, end, steps, str(row.turns), str(row.errors), *spent, f"{row.ended_s - row.submitted_s:.2f}"]


def _rates(rates: dict[str, tuple[StepRate, ...]]) -> str:
    rows = [
        [
            f"{arm} {each.step + 1}",
            f"{each.rate_tps.p50:.1f}",
            f"{each.rate_tps.p5:.1f}",
            f"{each.rate_tps.p95:.1f}",
            f"{each.prompt_tokens_mean:.0f}",
            str(each.turns),
        ]
        for arm, steps in rates.items()
        for each in steps
    ]
    head = ["arm and step", "median", "5th percentile", "95th percentile", "context at the start", "turns"]
    return picture(
        "rates",
        "Decode rate against step",
        "Tokens per second of one agent while it decodes, at each step of its way: median, and the middle 90 % as a "
        "band. Later steps have a longer context.",
        table(head, rows, caption="Decode rate in tokens per second; context in tokens"),
    )


def _cells(cells: dict[str, tuple[CellsAt, ...]]) -> str:
    rows = [
        [
            f"{arm} {each.at_s:.2f}",
            str(each.used),
            str(each.pool),
            str(each.private),
            str(each.naive),
            f"{each.naive / each.used:.2f}" if each.used and each.naive else "-",
            str(each.live),
        ]
        for arm, samples in cells.items()
        for each in _thinned(samples)
    ]
    head = ["arm and second", "used", "in pools", "private", "naive", "naive / used", "agents"]
    return picture(
        "cells",
        "KV cells over time",
        "Cells in use, and the cells that the same agents would hold without sharing (naive, dashed).",
        table(head, rows, caption=f"KV cells; at most {CELL_TABLE_ROWS} samples of each arm"),
    )


def _thinned(samples: Sequence[CellsAt]) -> Sequence[CellsAt]:
    stride = -(-len(samples) // CELL_TABLE_ROWS) or 1
    return samples[::stride]


def _settings(manifest: Manifest) -> str:
    groups = {
        "model": manifest.model,
        "engine": manifest.engine,
        "machine": manifest.machine,
        "versions": manifest.versions,
        "arguments": manifest.arguments,
    }
    rows = [(f"{group}: {name}", str(value)) for group, values in groups.items() for name, value in values.items()]
    rows += [("prefix counted by", manifest.prefix_counted_by), ("server", manifest.server)]
    manifest_table = table(["setting", "value"], rows, caption="Manifest")
    return f'<section class="settings">{element("h2", "What was run, on what")}{manifest_table}</section>'


def _notices() -> str:
    texts = "".join(element("pre", _asset(f"vendor/{name}")) for name in NOTICES)
    return f"<section><details><summary>Licences of what is inside this page</summary>{texts}</details></section>"


def _data(
    lines: dict[str, tuple[PackageLine, ...]],
    rates: dict[str, tuple[StepRate, ...]],
    cells: dict[str, tuple[CellsAt, ...]],
) -> str:
    value: dict[str, Any] = {
        "lines": {arm: [_line_data(line) for line in packages] for arm, packages in lines.items()},
        "rates": {
            arm: [
                [each.step + 1, *(round(v, 2) for v in (each.rate_tps.p5, each.rate_tps.p50, each.rate_tps.p95))]
                for each in steps
            ]
            for arm, steps in rates.items()
        },
        "cells": {
            arm: [[round(each.at_s, 2), each.used, each.naive, each.pool] for each in samples]
            for arm, samples in cells.items()
        },
    }
    return embedded_json("data", value)


def _line_data(line: PackageLine) -> dict[str, Any]:
    end = "not ended" if line.row is None else (line.row.cause or line.row.outcome)
    segments = [[each.phase, round(each.start_s, 3), round(each.end_s, 3), each.step + 1] for each in line.segments]
    return {"package": line.package, "end": end, "segments": segments}
