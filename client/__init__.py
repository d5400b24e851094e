"""The Python SDK: producers and consumers for any RocketMQ 5 endpoint, over gRPC.

    producer.py, transactions.py          send
    simple_consumer.py, push_consumer.py, pull_consumer.py    receive
    sync.py                               the same, blocking: one event loop in a thread, the same core
    base.py                             what every client is: opened, closed, counted
    session.py                            what all of them share: connections, routes, telemetry, life
    routes.py, retrying.py, filters.py, identity.py, outgoing.py, message.py    pure parts

It speaks what the official clients speak, so it works against Apache RocketMQ 5 as well (gRPC API,
sections 8-10; client wire). Users import everything from `cometmq`.
"""
