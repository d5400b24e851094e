"""Failure drills: a workload, injected faults, and an independent checker."""
