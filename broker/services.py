"""The RPC services of a broker: method name -> handler. The protobuf descriptors supply the rest.

Handlers are plain functions on the event loop; see `front/service.py`.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from msgspec.structs import replace

from ..front.service import Method, methods_of
from ..proto import paths, v2
from ..proto.request_limits import RequestLimits
from .base.late_request import LateRequest, decoded_late
from .pop.ack_request import AckRequest
from .sending.grpc_send import SendRequest

if TYPE_CHECKING:
    from .access.quota_admin import QuotaAdmin
    from .access.user_admin import UserAdmin
    from .admin.fault_service import FaultService
    from .admin.message_queries import MessageQueries
    from .admin.read_log import LogReads
    from .admin.replication import ReplicationAdmin
    from .admin.service import Admin
    from .assembly.parts import Broker
    from .clients.sessions import Sessions
    from .clients.telemetry import TelemetryService
    from .delay.timer_list import TimerList
    from .maintenance.store_maintenance import StoreMaintenance
    from .maintenance.store_view import StoreView
    from .routing.routes import Routes
    from .sending.sender import Sender
    from .transactions.listing import TransactionList

_ADMIN = "cometmq.v1.Admin"
#: Bytes of a SendMessage beside the body: 16 KiB of properties, topic, group and ids.
AROUND_BODY_BYTES = 1 << 20


def messaging(
    broker: Broker,
    routes: Routes,
    sessions: Sessions,
    telemetry: TelemetryService,
    max_message_size: int = 0,
) -> list[Method]:
    """Return the methods of `apache.rocketmq.v2.MessagingService`.

    `max_message_size` matters if it is above the limit of a SendMessage request.
    """
    acks, pulls = broker.acks, broker.pulls
    rows = methods_of(
        "apache.rocketmq.v2.MessagingService",
        {
            "QueryRoute": routes.query_route,
            "QueryAssignment": routes.query_assignment,
            "Heartbeat": sessions.heartbeat,
            "NotifyClientTermination": sessions.notify_client_termination,
            "SendMessage": broker.sender,
            "ReceiveMessage": broker.receiving.receive,
            "AckMessage": acks.ack,
            "ChangeInvisibleDuration": acks.change_invisible,
            "ForwardMessageToDeadLetterQueue": acks.forward_to_dead_letter_queue,
            "PullMessage": pulls.pull_message,
            "UpdateOffset": pulls.update_offset,
            "GetOffset": pulls.get_offset,
            "QueryOffset": pulls.query_offset,
            "RecallMessage": broker.recalls.recall,
            "EndTransaction": broker.transactions.end_transaction,
            "SyncLiteSubscription": broker.lite.subscribing.sync,
            "Telemetry": telemetry.open,
        },
    )
    # A failed receive carries the status in the first message of its stream.
    failure = {paths.RECEIVE_MESSAGE: broker.pop.failure}
    largest = max_message_size + AROUND_BODY_BYTES
    limits = {paths.SEND_MESSAGE: RequestLimits(v2.SendMessageRequest, largest)}
    methods = [
        replace(
            row,
            fail=failure.get(row.path, row.fail),
            limits=limits.get(row.path, row.limits),
        )
        for row in rows
    ]
    late: dict[str, type[LateRequest]] = {}
    if broker.sender.takes_bytes:
        late[paths.SEND_MESSAGE] = SendRequest
    if acks.takes_bytes:
        late[paths.ACK_MESSAGE] = AckRequest
    return [decoded_late(row, late[row.path]) if row.path in late else row for row in methods]


def administration(
    *,
    admin: Admin,
    sender: Sender,
    maintenance: StoreMaintenance,
    queries: MessageQueries,
    timers: TimerList,
    transactions: TransactionList,
    store: StoreView,
    replication: ReplicationAdmin,
    users: UserAdmin,
    quotas: QuotaAdmin,
) -> list[Method]:
    """Return the methods of `cometmq.v1.Admin`, apart from `reading`."""
    return methods_of(
        _ADMIN,
        {
            "CreateTopic": admin.topics.create,
            "DeleteTopic": admin.topics.delete,
            "ListTopics": admin.topics.list_all,
            "DescribeTopic": admin.topics.describe,
            "CreateGroup": admin.groups.create,
            "DeleteGroup": admin.groups.delete,
            "ListGroups": admin.groups.list_all,
            "DescribeGroup": admin.groups.describe,
            "ListClients": admin.clients.list_all,
            "GetClientStack": admin.clients.stack,
            "ListBrokers": admin.list_brokers,
            "DescribeCluster": admin.describe_cluster,
            "SetDrained": admin.topics.set_drained,
            "ResetOffsets": admin.offsets.reset,
            "GetConfig": admin.get_config,
            "ChangeConfig": admin.change_config,
            "SendOnce": sender.send_once,
            "QueryMessages": queries.query_messages,
            "ListTimers": timers.list_timers,
            "ListTransactions": transactions.list_transactions,
            "DescribeStore": store.describe,
            "DescribeReplication": replication.describe,
            "ChangeReplication": replication.change,
            "SetArchiveWatermark": maintenance.set_archive_watermark,
            "GetArchiveWatermark": maintenance.get_archive_watermark,
            "PutUser": users.put,
            "DeleteUser": users.delete,
            "ListUsers": users.list_all,
            "PutPolicy": users.put_policy,
            "DeletePolicy": users.delete_policy,
            "CheckAccess": users.check,
            "PutQuota": quotas.put,
            "DeleteQuota": quotas.delete,
            "ListQuotas": quotas.list_all,
        },
    )


def reading(reads: LogReads) -> list[Method]:
    """Return the methods of `cometmq.v1.Admin` that read the commit log and the consumer offsets.

    Apart from `administration`, because they share no part with it.
    """
    return methods_of(
        _ADMIN,
        {
            "ReadLog": reads.read_log,
            "LocateLog": reads.locate_log,
            "ReadOffsets": reads.read_offsets,
        },
    )


def testing(tests: FaultService) -> list[Method]:
    """Return the methods of `cometmq.v1.Test`."""
    return methods_of(
        "cometmq.v1.Test",
        {
            "GetClock": tests.get_clock,
            "SetClock": tests.set_clock,
            "AdvanceClock": tests.advance_clock,
            "PutFault": tests.put_fault,
            "ListFaults": tests.list_faults,
            "ClearFaults": tests.clear_faults,
            "GetCounters": tests.get_counters,
            "SetRoutes": tests.set_routes,
        },
    )


def table(methods: Iterable[Method]) -> dict[str, Method]:
    """Return the methods by path."""
    return {method.path: method for method in methods}
