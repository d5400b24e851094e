"""The ports of the processes of `cometmq up`.

Without `--port`, of new files: clients 8081, 8083, ..., replication 10912, 10914, ..., metrics
5557, 5559, ..., nameservers 9876, 9877, ..., their metrics 5558, 5560, .... Classic clients
(`--remoting`) use the ports of gRPC clients. With `--port N` one block:

    N, N + 2                    clients of the first two brokers
    N + 1                       the first nameserver
    N + 3, N + 5                replication of the first two brokers
    N + 4, N + 6                metrics of the first two brokers
    from N + 7                  the other nameservers, then three ports (clients, replication,
                                metrics) for each further broker, then the metrics of the
                                nameservers
"""

import socket
from collections.abc import Iterator
from itertools import count

from .shape import Shape

HOST = "127.0.0.1"
#: Flags of the ports of a broker, in the order of a `BrokerPorts`.
BROKER_FLAGS = ("grpc_server_port", "ha_listen_port", "metrics_prom_exporter_port")

#: Ports of clients, replication and metrics.
BrokerPorts = tuple[int, int, int]

_USUAL: BrokerPorts = (8081, 10912, 5557)
_USUAL_NAMESRV = 9876
_USUAL_NAMESRV_METRICS = 5558
_DISTANCE = 2
# Ports of one nameserver and two brokers, the first part of a block.
_FIRST = 7


def usual_brokers() -> Iterator[BrokerPorts]:
    """Yield the ports of new brokers without `--port`."""
    clients, ha, metrics = _USUAL
    for index in count():
        distance = index * _DISTANCE
        yield clients + distance, ha + distance, metrics + distance


def usual_nameservers() -> Iterator[int]:
    """Yield the ports of nameservers without `--port`."""
    return count(_USUAL_NAMESRV)


def usual_nameserver_metrics() -> Iterator[int]:
    """Yield the metrics ports of nameservers without `--port`, between those of the brokers."""
    return count(_USUAL_NAMESRV_METRICS, _DISTANCE)


def block_brokers(first: int, nameservers: int) -> Iterator[BrokerPorts]:
    """Yield the ports of the brokers in the block from `first` on."""
    yield first, first + 3, first + 4
    yield first + 2, first + 5, first + 6
    for start in count(first + _FIRST + nameservers - 1, 3):
        yield start, start + 1, start + 2


def block_nameservers(first: int) -> Iterator[int]:
    """Yield the ports of the nameservers in the block from `first` on."""
    yield first + 1
    yield from count(first + _FIRST)


def block_nameserver_metrics(first: int, shape: Shape) -> Iterator[int]:
    """Yield the metrics ports of the nameservers, at the end of the block."""
    return count(first + block_size(shape) - shape.nameservers)


def block_size(shape: Shape) -> int:
    """Return the number of ports of a block."""
    more = shape.groups * shape.replicas - 2
    return _FIRST + shape.nameservers - 1 + 3 * max(0, more) + shape.nameservers


def reserve() -> socket.socket:
    """Return a socket bound to a free port that does not listen.

    Until it is closed, the system gives the port to no other process that takes any free one, but a
    server (with SO_REUSEADDR, as all of ours) can listen on it.
    """
    held = socket.socket()
    held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    held.bind((HOST, 0))
    return held
