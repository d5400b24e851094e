"""Benchmarks: each prints ratios to a bound measured in the same run. No timed assertions."""
