"""The golden page and summary of a record that is always the same: `python -m tests.report.golden` writes them anew."""

from __future__ import annotations

import re
from pathlib import Path

from polystem.report import report_html, summary_markdown
from tests.report.synthetic import TWO_ARMS, synthetic_record

FOLDER = Path(__file__).parent / "golden"
RECORD = synthetic_record(6, 5, TWO_ARMS, drop_every=4)


def golden_page() -> str:
    """The page without its styles, scripts and licences, an element a line."""
    page = re.sub(r"<style>.*?</style>|<script>.*?</script>|<pre>.*?</pre>", "", report_html(RECORD), flags=re.DOTALL)
    return re.sub(r"(?<=>)(?=<(?:section|h2|tr|div|header|script|/main))", "\n", page).replace("],[", "],\n[")


def golden_summary() -> str:
    return summary_markdown(RECORD)


def main() -> None:
    """Writes both; read the difference before you commit it."""
    FOLDER.mkdir(exist_ok=True)
    (FOLDER / "run.html").write_text(golden_page(), "utf-8")
    (FOLDER / "run.md").write_text(golden_summary(), "utf-8")


if __name__ == "__main__":
    main()
