"""Turns records, sweeps and comparisons into one HTML file that needs no network, and into a summary in Markdown."""

from polystem.report.compare_page import comparison_html, comparison_markdown
from polystem.report.markdown import summary_markdown
from polystem.report.run_page import report_html
from polystem.report.sweep_page import sweep_html, sweep_markdown

__all__ = [
    "comparison_html",
    "comparison_markdown",
    "report_html",
    "summary_markdown",
    "sweep_html",
    "sweep_markdown",
]
