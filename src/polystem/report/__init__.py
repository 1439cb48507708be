"""Turns a record into one HTML file that needs no network."""

from polystem.report.page import report_html

__all__ = ["report_html"]
