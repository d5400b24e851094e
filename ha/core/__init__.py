"""Replication core: decisions as pure state machines, events and time in, effects out.

Nothing here reads a clock, opens a file or a socket, or imports code outside `ha/core`: the same
classes run in production and in the simulation (docs/formats/ha.md, section 6.4).
"""
