"""`cometmq bench`: measures a cluster through the SDK.

command.py           the command
workloads.py         what is sent, what is measured; the bodies of messages
pacing.py            open and closed loops
latency.py           histograms, and the curve over time
ledger.py            every message of a run: acknowledged, received, lost, duplicated
processor_time.py    CPU time of this process and of local servers
running.py           one run
names.py             the topic and the group of a run
report.py, page.py   results as table, JSON and HTML
"""
