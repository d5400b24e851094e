"""The Python SDK: producers and consumers for any RocketMQ 5 endpoint, over gRPC.

    producer.py, transactions.py          send
    simple_consumer.py, push_consumer.py, pull_consumer.py    receive
    sync.py                               the same clients, blocking
    base.py                               base class of every client: start, close, statistics
    session.py                            shared by all clients: connections, routes, telemetry
    transport/                            addresses, credentials, gRPC channels and calls
    testing/                              test kit: a real broker, fault injection, pytest plugin
    routes.py, retrying.py, filters.py, identity.py, outgoing.py, message.py    pure parts

The SDK uses the protocol of the official clients, so it also works with Apache RocketMQ 5
(docs/formats/grpc-api.md, sections 8-10; docs/formats/client-wire.md). Users import everything
from `cometmq`.
"""
