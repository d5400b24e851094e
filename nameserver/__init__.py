"""The nameserver: which replicas are there, which of them leads, and which topics they hold.

`routes.py` decides (pure: no clock, no I/O), `query_route.py` turns its tables into what official
clients read, `server.py` is the process around them, `known_groups.py` its one small file.

Nameservers know nothing of each other: every broker registers with all of them. What is kept is
derived state; a nameserver that starts empty is whole again after one beat of every broker.
"""
