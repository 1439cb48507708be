"""The report of one run, whatever arms it has."""

from __future__ import annotations

from collections.abc import Sequence

from polystem.harness.figures import figures_of
from polystem.harness.metrics import ArmSummary, summarise_all
from polystem.harness.record import Record
from polystem.harness.rows import Manifest
from polystem.report.arm_pictures import Arm, delivery_picture, front_picture
from polystem.report.crossings import crossings_in, crossings_table
from polystem.report.fleet_pictures import agents_picture, cells_picture
from polystem.report.html import Table
from polystem.report.package_pictures import drops_picture, failures_table, time_line_picture
from polystem.report.page import Part, Tables, page_html
from polystem.report.rate_pictures import context_picture, step_picture, under_floor_picture
from polystem.report.verdict import run_verdict
from polystem.report.views import ArmView, views_of

__all__ = ["figures_table", "report_html", "run_parts", "settings_table"]


def report_html(record: Record) -> str:
    """The page of one run."""
    summaries, views = summarise_all(record), views_of(record)
    crossed = crossings_table(crossings_in(record))
    parts = (
        *(() if crossed is None else (Tables("Cross-talk", crossed, "failures"),)),
        *run_parts([Arm(view, summary) for view, summary in zip(views, summaries, strict=True)]),
    )
    settings = Tables("What was run, on what", settings_table(record.manifest), "settings")
    return page_html("Courier report", run_verdict(record, summaries), [*parts, settings])


def run_parts(arms: Sequence[Arm]) -> tuple[Part, ...]:
    """Figures and all pictures of arms, which may come from several records."""
    views = [arm.view for arm in arms]
    figures = Tables("Figures", figures_table([arm.summary for arm in arms], [view.label for view in views]), "figures")
    failures = failures_table(views)
    return (
        *(() if failures is None else (Tables("What went wrong", failures, "failures"),)),
        figures,
        step_picture(views),
        context_picture(views),
        under_floor_picture(views),
        *(time_line_picture(view, len(views)) for view in views),
        *(agents_picture(view) for view in views),
        cells_picture(views),
        delivery_picture(views),
        *((front_picture(arms),) if _judged(views) else ()),
        drops_picture(views),
    )


def _judged(views: Sequence[ArmView]) -> bool:
    return any(view.floor_tps is not None for view in views)


def figures_table(summaries: Sequence[ArmSummary], labels: Sequence[str]) -> Table:
    """All figures, one column for each arm."""
    rows = tuple((figure.name, *figure.texts, figure.meaning) for figure in figures_of(summaries))
    return Table("Figures of each arm", ("figure", *labels, "what it means"), rows)


def settings_table(manifest: Manifest) -> Table:
    """Everything in the manifest that says what was run."""
    groups = {
        "model": manifest.model,
        "engine": manifest.engine,
        "machine": manifest.machine,
        "versions": manifest.versions,
        "arguments": manifest.arguments,
    }
    rows = [(f"{group}: {name}", str(value)) for group, values in groups.items() for name, value in values.items()]
    rows += [("prefix counted by", manifest.prefix_counted_by), ("server", manifest.server)]
    if manifest.work_sha256:
        rows.append(("work: sha256", manifest.work_sha256))
    return Table("Manifest", ("setting", "value"), tuple(rows))
