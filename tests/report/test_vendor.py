"""The vendored chart library is the file its README names, with its licences beside it."""

from __future__ import annotations

import hashlib
import re
from importlib.resources import files

from polystem.report.page import NOTICES

VENDOR = files("polystem.report") / "vendor"


def test_the_chart_library_is_unchanged() -> None:
    sums = re.findall(r"([0-9a-f]{64})  (\S+)", (VENDOR / "README.md").read_text("utf-8"))
    assert [name for _, name in sums] == ["echarts.min.js"]
    for digest, name in sums:
        assert hashlib.sha256((VENDOR / name).read_bytes()).hexdigest() == digest


def test_its_licences_are_there() -> None:
    assert "Apache License" in (VENDOR / "echarts-LICENSE").read_text("utf-8")
    assert "Apache ECharts" in (VENDOR / "echarts-NOTICE").read_text("utf-8")
    assert "Mike Bostock" in (VENDOR / "echarts-LICENSE-d3").read_text("utf-8")
    assert "Baidu Inc." in (VENDOR / "zrender-LICENSE").read_text("utf-8")


def test_every_licence_goes_into_the_report() -> None:
    beside = {path.name for path in VENDOR.iterdir() if "LICENSE" in path.name or "NOTICE" in path.name}
    assert set(NOTICES) == beside


def test_it_can_stand_inside_a_script_element() -> None:
    text = (VENDOR / "echarts.min.js").read_text("utf-8").lower()
    assert not [risk for risk in ("</script", "<script", "<!--") if risk in text]
