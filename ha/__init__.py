"""Replication: a follower's commit log becomes a byte copy of its leader's.

`core/` decides (no clock, no sockets, no files), the rest of the folder acts; `README.md` states the
promise, the limits and what a crash leaves behind. Source of the protocol: HA note, section 6.
"""
