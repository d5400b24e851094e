"""Benchmarks: each prints ratios to a bound that was measured in the same run. No assertion on time."""
