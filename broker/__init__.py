"""The broker: topics and groups, clients, send, receive, offsets, and the services on top of them.

One event loop per process is the only writer. `node.py` is the map: everything a service needs
hangs on `Node`; `server.py` composes a process from it; `services.py` is the table of RPCs.
"""
