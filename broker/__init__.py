"""The broker: topics and groups, clients, send, receive, offsets, and the services on top of them.

One event loop per process is the only writer. `node.py` is the map: everything a service needs
hangs on `Node`; `server.py` composes a process from it; `services.py` is the table of RPCs.

    sending   SendMessage into the log           transactions   half messages, ends, checks
    pop       ReceiveMessage and its acks        lite           many small topics within one
    journal   what makes pops survive            sql            filter expressions
    delay     levels, timers, recall             metadata       topics and groups
    clients   who is connected                   admin          what operators ask
    metrics   counters and their page            trace          the trace that the broker writes
"""
