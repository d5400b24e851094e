"""The proxy's service table: every method of a broker, a few of them answered by the proxy.

The broker's table defines how the requests of each method are decoded and its failures encoded; its
handlers are never called, because the access point finds another owner for each request
(`owners.py`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from ...front.service import Method, status_failure
from ...proto import paths, v2
from ...proto.errors import WireError
from .. import services
from ..messages.wire import field, status

if TYPE_CHECKING:
    from .broker_queries import BrokerQueries
    from .telemetry import ProxyTelemetry


class _Elsewhere:
    """A stand-in for every part of a broker that a proxy lacks."""

    def __getattr__(self, name: str) -> Any:
        return self

    def __call__(self, *_: Any, **__: Any) -> Any:
        raise WireError(v2.HA_NOT_AVAILABLE, "no broker can be reached: try again")


def table(
    asking: BrokerQueries, telemetry: ProxyTelemetry, max_message_size: int
) -> dict[str, Method]:
    """Return the methods by path. `max_message_size`: bytes of the largest body to forward."""
    nowhere: Any = _Elsewhere()
    methods = services.table(
        [
            *services.messaging(nowhere, nowhere, nowhere, nowhere, max_message_size),
            *services.administration(
                admin=nowhere,
                maintenance=nowhere,
                queries=nowhere,
                timers=nowhere,
                transactions=nowhere,
                store=nowhere,
                replication=nowhere,
                users=nowhere,
                quotas=nowhere,
            ),
            *services.reading(nowhere),
        ]
    )
    methods[paths.RECEIVE_MESSAGE] = replace(methods[paths.RECEIVE_MESSAGE], fail=_no_messages)
    for path, handler in (
        (paths.QUERY_ROUTE, asking.query_route),
        (paths.QUERY_ASSIGNMENT, asking.query_assignment),
        (paths.HEARTBEAT, asking.heartbeat),
        (paths.NOTIFY_CLIENT_TERMINATION, asking.notify_client_termination),
        (paths.TELEMETRY, telemetry.open),
    ):
        methods[path] = replace(methods[path], handler=handler)
    methods[paths.TELEMETRY] = replace(
        methods[paths.TELEMETRY], fail=status_failure(v2.TelemetryCommand)
    )
    return methods


def _no_messages(error: WireError) -> list[bytes]:
    """Return the response stream of a ReceiveMessage without messages."""
    return [field(b"\x0a", status(error.code, error.message))]
