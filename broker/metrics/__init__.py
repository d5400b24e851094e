"""Counters, and the page of metrics."""
