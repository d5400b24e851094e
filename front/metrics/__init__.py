"""Metrics that every server process has, and the HTTP port that serves them."""
