"""The table of every RPC that a broker serves: path, kind, conversion, handler, failure.

Promises: all eighteen methods of the messaging service are here. Handlers are plain functions on the
loop; conversion is protobuf's own
(gRPC API, section 3.4; design, section 3).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

from ..front.service import Kind, Method, status_failure
from ..proto import paths, v1, v2
from ..proto.errors import WireError
from .clients.telemetry import TelemetrySession
from .delay.recall import Recalls

if TYPE_CHECKING:
    from ..front.context import RequestContext
    from ..front.service import Outbound
    from .admin.fault_service import FaultService
    from .admin.message_queries import MessageQueries
    from .admin.read_log import LogReads
    from .admin.service import Admin
    from .clients.sessions import Sessions
    from .maintenance.store_maintenance import StoreMaintenance
    from .node import Node
    from .pop.ack import AckService
    from .pull.service import PullService
    from .routing.routes import Routes


def messaging(
    node: Node, routes: Routes, sessions: Sessions, acks: AckService, pulls: PullService
) -> list[Method]:
    """`apache.rocketmq.v2.MessagingService`."""
    return [
        _unary(paths.QUERY_ROUTE, v2.QueryRouteRequest, v2.QueryRouteResponse, routes.query_route),
        _unary(
            paths.QUERY_ASSIGNMENT,
            v2.QueryAssignmentRequest,
            v2.QueryAssignmentResponse,
            routes.query_assignment,
        ),
        _unary(paths.HEARTBEAT, v2.HeartbeatRequest, v2.HeartbeatResponse, sessions.heartbeat),
        _unary(
            paths.NOTIFY_CLIENT_TERMINATION,
            v2.NotifyClientTerminationRequest,
            v2.NotifyClientTerminationResponse,
            sessions.notify_client_termination,
        ),
        _unary(paths.SEND_MESSAGE, v2.SendMessageRequest, v2.SendMessageResponse, node.sender.send),
        Method(
            paths.RECEIVE_MESSAGE,
            Kind.SERVER_STREAM,
            v2.ReceiveMessageRequest.FromString,
            node.pop.receive,
            node.pop.failure,
        ),
        _unary(paths.ACK_MESSAGE, v2.AckMessageRequest, v2.AckMessageResponse, acks.ack),
        _unary(
            paths.CHANGE_INVISIBLE_DURATION,
            v2.ChangeInvisibleDurationRequest,
            v2.ChangeInvisibleDurationResponse,
            acks.change_invisible,
        ),
        _unary(
            paths.FORWARD_MESSAGE_TO_DEAD_LETTER_QUEUE,
            v2.ForwardMessageToDeadLetterQueueRequest,
            v2.ForwardMessageToDeadLetterQueueResponse,
            acks.forward_to_dead_letter_queue,
        ),
        _stream(
            paths.PULL_MESSAGE, v2.PullMessageRequest, v2.PullMessageResponse, pulls.pull_message
        ),
        _unary(
            paths.UPDATE_OFFSET,
            v2.UpdateOffsetRequest,
            v2.UpdateOffsetResponse,
            pulls.update_offset,
        ),
        _unary(paths.GET_OFFSET, v2.GetOffsetRequest, v2.GetOffsetResponse, pulls.get_offset),
        _unary(
            paths.QUERY_OFFSET, v2.QueryOffsetRequest, v2.QueryOffsetResponse, pulls.query_offset
        ),
        *_newer(node),
        _telemetry(node),
    ]


def _newer(node: Node) -> list[Method]:
    """What later versions of the protocol added, and transactions."""
    return [
        _unary(
            paths.RECALL_MESSAGE,
            v2.RecallMessageRequest,
            v2.RecallMessageResponse,
            Recalls(node).recall,
        ),
        _unary(
            paths.END_TRANSACTION,
            v2.EndTransactionRequest,
            v2.EndTransactionResponse,
            node.transactions.end_transaction,
        ),
        _unary(
            paths.SYNC_LITE_SUBSCRIPTION,
            v2.SyncLiteSubscriptionRequest,
            v2.SyncLiteSubscriptionResponse,
            node.lite.subscribing.sync,
        ),
    ]


def _telemetry(node: Node) -> Method:
    def handler(ctx: RequestContext, outbound: Outbound) -> TelemetrySession:
        return TelemetrySession(node, ctx, outbound)

    return Method(
        paths.TELEMETRY,
        Kind.BIDI,
        v2.TelemetryCommand.FromString,
        handler,
        status_failure(v2.TelemetryCommand),
    )


def reading(reads: LogReads) -> list[Method]:
    """The part of `cometmq.v1.Admin` that hands out the log as it lies there."""
    return [
        _stream(paths.READ_LOG, v1.ReadLogRequest, v1.LogFrames, reads.read_log),
        _unary(paths.LOCATE_LOG, v1.LocateLogRequest, v1.LocateLogResponse, reads.locate_log),
    ]


def administration(
    admin: Admin, maintenance: StoreMaintenance, queries: MessageQueries
) -> list[Method]:
    """`cometmq.v1.Admin`."""
    return [
        _unary(
            paths.CREATE_TOPIC, v1.CreateTopicRequest, v1.CreateTopicResponse, admin.topics.create
        ),
        _unary(
            paths.DELETE_TOPIC, v1.DeleteTopicRequest, v1.DeleteTopicResponse, admin.topics.delete
        ),
        _unary(
            paths.LIST_TOPICS, v1.ListTopicsRequest, v1.ListTopicsResponse, admin.topics.list_all
        ),
        _unary(
            paths.DESCRIBE_TOPIC,
            v1.DescribeTopicRequest,
            v1.DescribeTopicResponse,
            admin.topics.describe,
        ),
        _unary(
            paths.CREATE_GROUP, v1.CreateGroupRequest, v1.CreateGroupResponse, admin.groups.create
        ),
        _unary(
            paths.DELETE_GROUP, v1.DeleteGroupRequest, v1.DeleteGroupResponse, admin.groups.delete
        ),
        _unary(
            paths.LIST_GROUPS, v1.ListGroupsRequest, v1.ListGroupsResponse, admin.groups.list_all
        ),
        _unary(
            paths.DESCRIBE_GROUP,
            v1.DescribeGroupRequest,
            v1.DescribeGroupResponse,
            admin.groups.describe,
        ),
        _unary(
            paths.DESCRIBE_CLUSTER,
            v1.DescribeClusterRequest,
            v1.DescribeClusterResponse,
            admin.describe_cluster,
        ),
        _unary(
            paths.RESET_OFFSETS,
            v1.ResetOffsetsRequest,
            v1.ResetOffsetsResponse,
            admin.offsets.reset,
        ),
        _unary(paths.GET_CONFIG, v1.GetConfigRequest, v1.GetConfigResponse, admin.get_config),
        _unary(
            paths.QUERY_MESSAGES,
            v1.QueryMessagesRequest,
            v1.QueryMessagesResponse,
            queries.query_messages,
        ),
        _unary(
            paths.SET_ARCHIVE_WATERMARK,
            v1.SetArchiveWatermarkRequest,
            v1.SetArchiveWatermarkResponse,
            maintenance.set_archive_watermark,
        ),
        _unary(
            paths.GET_ARCHIVE_WATERMARK,
            v1.GetArchiveWatermarkRequest,
            v1.GetArchiveWatermarkResponse,
            maintenance.get_archive_watermark,
        ),
    ]


def testing(tests: FaultService) -> list[Method]:
    """`cometmq.v1.Test`."""
    return [
        _unary(paths.GET_CLOCK, v1.GetClockRequest, v1.ClockResponse, tests.get_clock),
        _unary(paths.SET_CLOCK, v1.SetClockRequest, v1.ClockResponse, tests.set_clock),
        _unary(paths.ADVANCE_CLOCK, v1.AdvanceClockRequest, v1.ClockResponse, tests.advance_clock),
        _unary(paths.PUT_FAULT, v1.PutFaultRequest, v1.PutFaultResponse, tests.put_fault),
        _unary(paths.LIST_FAULTS, v1.ListFaultsRequest, v1.ListFaultsResponse, tests.list_faults),
        _unary(
            paths.CLEAR_FAULTS, v1.ClearFaultsRequest, v1.ClearFaultsResponse, tests.clear_faults
        ),
        _unary(
            paths.GET_COUNTERS, v1.GetCountersRequest, v1.GetCountersResponse, tests.get_counters
        ),
        _unary(paths.SET_ROUTES, v1.SetRoutesRequest, v1.SetRoutesResponse, tests.set_routes),
    ]


def table(methods: Iterable[Method]) -> dict[str, Method]:
    """By path."""
    return {method.path: method for method in methods}


def _unary(path: str, request: Any, response: Any, handler: Callable[..., Any]) -> Method:
    return Method(path, Kind.UNARY, request.FromString, handler, status_failure(response))


def _stream(path: str, request: Any, response: Any, handler: Callable[..., Any]) -> Method:
    one = status_failure(response)

    def fail(error: WireError) -> list[Any]:
        return [one(error)]

    return Method(path, Kind.SERVER_STREAM, request.FromString, handler, fail)
