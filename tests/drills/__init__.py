"""Drills: a workload, a fault, and a checker that knows only what the workload was promised."""
