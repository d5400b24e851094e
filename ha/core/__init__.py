"""The decisions of replication as plain classes: an event and the time go in, effects come out.

Nothing here reads a clock, touches a file or a socket, or imports anything of ours: the same classes
run in production and in a simulation (HA note, section 6.4).
"""
