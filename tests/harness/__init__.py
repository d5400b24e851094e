"""Shared by tests, drills and benchmarks: a real cluster, a raw client, checkers."""
