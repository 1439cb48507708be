"""Measurements with goals. Each script runs by itself: `python -m bench.cells --quick`; see docs/benchmarks.md."""
