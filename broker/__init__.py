"""The broker: topics, groups, clients, sending, receiving, offsets, and the services on top.

One event loop per process is the only writer. `assembly.py` builds all parts and returns an
immutable `Broker` (`parts.py`); `client_port.py` builds what serves clients; `lifecycle.py` starts
and stops one instance; `server.py` runs one instance after another; `role.py` switches between
leader and follower; `services.py` maps RPCs to handlers.

    sending       SendMessage into the log           transactions   half messages, outcomes, checks
    pop           ReceiveMessage and acknowledgement lite           many small topics within one
    pull          PullMessage and cold reads         sql            filter expressions
    journal       pop state that survives a crash    metadata       topics and groups
    delay         delay levels, timers, recall       admin          `cometmq.v1.Admin`
    clients       connected clients, telemetry       metrics        counters and `/metrics`
    routing       routes, membership, forwarding     offsets        consumer offsets
    messages      validation and conversion          maintenance    retention, full disks
    trace         message trace records              proxy          the stateless proxy process
    access        users, rights, audit log
"""
