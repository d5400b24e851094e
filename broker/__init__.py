"""The broker: topics, groups, clients, sending, receiving, offsets, and the services on top.

One event loop per process is the only writer. `assembly/` builds the parts behind the services and
returns an immutable `Broker`; `client_port.py` builds what serves clients; `lifecycle.py` starts
and stops one instance; `server.py` runs one instance after another; `role.py` switches between
leader and follower; `services.py` maps RPCs to handlers.

The folders are floors: each imports only what stands before it (docs/design/layers.md).

    base          configuration, clock, role, counters       visible       durability, dispatch
    sql           filter expressions                         messages      validation, conversion
    metadata      topics and groups                          offsets       consumer offsets
    names         handles, retry topics, lite topics         clients       sessions, telemetry
    access        users, rights, quotas, audit log           cold          reads of old log data
    trace         message traces, spans                      core          store and tables
    sending       SendMessage into the log                   delay         levels, timers, recall
    transactions  half messages, outcomes, checks            pop           ReceiveMessage, acks
    journal       pop state that survives a crash            pull          PullMessage
    lite          many small topics within one
    routing       routes, membership, forwarding             maintenance   retention, removal, lag
    assembly      composition of the parts
    metrics       `/metrics`                                 admin         `cometmq.v1.Admin`
    classic       remoting requests                          proxy         the stateless proxy
"""
