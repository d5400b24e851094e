"""`cometmq drill`: failure drills. A workload, injected faults, and an independent checker.

Every drill starts its own processes (or containers) with a test profile of timers, changes nothing
else on the machine, and ends with a verdict: what was acknowledged, lost, duplicated, reordered.
"""
