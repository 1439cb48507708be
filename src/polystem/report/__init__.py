"""Turns what a courier command left behind into one HTML file that needs no network, and a summary in Markdown."""

from polystem.report.compare_page import comparison_html, comparison_markdown
from polystem.report.markdown import summary_markdown
from polystem.report.matrix_page import matrix_html
from polystem.report.repeats import RepeatRun, check_repeats
from polystem.report.repeats_page import repeats_html, repeats_markdown
from polystem.report.run_page import report_html
from polystem.report.sweep_page import sweep_html, sweep_markdown

__all__ = [
    "RepeatRun",
    "check_repeats",
    "comparison_html",
    "comparison_markdown",
    "matrix_html",
    "repeats_html",
    "repeats_markdown",
    "report_html",
    "summary_markdown",
    "sweep_html",
    "sweep_markdown",
]
