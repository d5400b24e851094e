"""The proxy's service table: every method of a broker, a few of them answered by the proxy.

The descriptors of the services define how the requests of each method are decoded and its failures
encoded. The access point finds an owner for each request of the other methods (`base/owners.py`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from msgspec.structs import replace

from ...front.service import Method, methods_of
from ...proto import paths, v2
from ...proto.errors import WireError
from ...proto.methods import rpc_methods
from ...proto.request_limits import RequestLimits
from ..base.late_request import decoded_late
from ..messages.wire import field, status
from ..pop.ack_request import AckRequest
from ..sending.grpc_send import SendRequest

if TYPE_CHECKING:
    from .broker_queries import BrokerQueries
    from .telemetry import ProxyTelemetry

_SERVICES: Final = ("apache.rocketmq.v2.MessagingService", "cometmq.v1.Admin")


def table(
    asking: BrokerQueries, telemetry: ProxyTelemetry, request_bytes_max: int
) -> dict[str, Method]:
    """Return the methods by path. `request_bytes_max`: of the largest send to forward."""
    methods = {
        row.path: row
        for service in _SERVICES
        for row in methods_of(service, dict.fromkeys(rpc_methods(service), _elsewhere))
    }
    for path, handler in (
        (paths.QUERY_ROUTE, asking.query_route),
        (paths.QUERY_ASSIGNMENT, asking.query_assignment),
        (paths.HEARTBEAT, asking.heartbeat),
        (paths.NOTIFY_CLIENT_TERMINATION, asking.notify_client_termination),
        (paths.TELEMETRY, telemetry.open),
    ):
        methods[path] = replace(methods[path], handler=handler)
    methods[paths.RECEIVE_MESSAGE] = replace(methods[paths.RECEIVE_MESSAGE], fail=_no_messages)
    limits = RequestLimits(v2.SendMessageRequest, request_bytes_max)
    send = replace(methods[paths.SEND_MESSAGE], limits=limits)
    methods[paths.SEND_MESSAGE] = decoded_late(send, SendRequest)
    methods[paths.ACK_MESSAGE] = decoded_late(methods[paths.ACK_MESSAGE], AckRequest)
    return methods


def _elsewhere(*_: Any) -> Any:
    raise WireError(v2.HA_NOT_AVAILABLE, "no broker can be reached: try again")


def _no_messages(error: WireError) -> list[bytes]:
    """Return the response stream of a ReceiveMessage without messages."""
    return [field(b"\x0a", status(error.code, error.message))]
