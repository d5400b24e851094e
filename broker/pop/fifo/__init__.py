"""Ordered delivery: queue locks, order information and ordered consumer groups."""
