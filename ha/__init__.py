"""Replication: keeps a follower's commit log a byte copy of its leader's.

`core/` decides (no clock, no sockets, no files), the other folders do the I/O. `README.md` states
the guarantees, the limits and the state after a crash; docs/formats/ha.md, section 6 is the
protocol.
"""
