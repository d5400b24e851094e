"""The administrative requests that a broker serves or refuses, by code."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ....remoting.refusals import refusing
from .access import ToolAccess
from .clients import ToolClients
from .groups import ToolGroups
from .progress import ToolProgress
from .rates import StoreRates
from .status import ToolStatus
from .topics import ToolTopics

if TYPE_CHECKING:
    from collections.abc import Callable

    from ....remoting.connection import Connection, Handler
    from ...admin.service import Admin
    from ...assembly.parts import Broker
    from ..base.members import Members

_REFUSED = {
    "a topic's queues belong to the brokers that have it: there are no static topics": (513,),
    "each broker is a process of its own: there is no broker container": (902, 903),
    "replicas learn the leader's flushed position from the leader": (908,),
    "there is no RocksDB: consume queues, timers and settings are files": (354, 355, 5001, 200056),
    "reads of old records are not limited by group": (2001, 2002, 2003),
    "the read-ahead of the log is not set at run time": (2004,),
    "the state of replicas is shown by `cometmq ha status`": (905, 906, 1001, 1007, 1008),
    "lite topics are served over gRPC only": (
        *(200070, 200071, 200072, 200073, 200074, 200075, 200076, 200077, 200078, 200079),
    ),
}


def admin_handlers(
    broker: Broker,
    admin: Admin,
    *,
    members: Members[Connection],
    producers: Members[Connection],
    advertised: Callable[[], str],
) -> dict[int, Handler]:
    """Return the table of request codes; `advertised`: the address of this broker in routes."""
    config = broker.runtime.config
    clock, metadata, store = broker.runtime.clock, broker.metadata, broker.store
    rates = StoreRates(
        clock=clock,
        store=store,
        metadata=metadata,
        offsets=broker.offsets,
        pump=broker.pump,
        counters=broker.runtime.counters,
    )
    topics = ToolTopics(
        clock=clock, metadata=metadata, topics=admin.topics, status=broker.status, rates=rates
    )
    groups = ToolGroups(
        clock=clock,
        metadata=metadata,
        groups=admin.groups,
        offsets=broker.offsets,
        members=members,
    )
    progress = ToolProgress(
        clock=clock,
        broker_name=config.broker_name,
        advertised=advertised,
        store=store,
        metadata=metadata,
        offsets=broker.offsets,
        offset_admin=admin.offsets,
        pump=broker.pump,
        members=members,
        rates=rates,
    )
    clients = ToolClients(
        clock=clock, members=members, producers=producers, progress=broker.progress
    )
    status = ToolStatus(
        clock=clock,
        store=store,
        metadata=metadata,
        status=broker.status,
        pump=broker.pump,
        rates=rates,
        settings=admin.settings,
    )
    return {
        **topics.handlers(),
        **groups.handlers(),
        **progress.handlers(),
        **clients.handlers(),
        **status.handlers(),
        **ToolAccess(metadata, broker.users).handlers(),
        **refusing(_REFUSED),
    }
