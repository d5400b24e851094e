"""The standard gRPC services health and reflection, as ordinary methods.

Health (`grpc.health.v1`) reports SERVING for the server and each of its services until the door
drains. Reflection describes our services from the private descriptor pool (`proto/pool.py`) and the
standard services from protobuf's default pool.
"""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

from google.protobuf import descriptor_pool
from grpc_health.v1 import health_pb2
from grpc_reflection.v1alpha import reflection, reflection_pb2
from msgspec.structs import replace

from ..proto.errors import NOT_FOUND, RpcFailure, WireError
from ..proto.pool import POOL
from .context import RequestContext
from .service import Kind, Method, Outbound, ServiceTable

HEALTH = "grpc.health.v1.Health"
_STATUS = health_pb2.HealthCheckResponse
# The name of a service, a file or a symbol.
_REQUEST_BYTES = 16 << 10


class _BothPools:
    """Pool methods used by reflection: our pool first, then protobuf's default pool."""

    def __getattr__(self, name: str) -> Any:
        ours = getattr(POOL, name)
        standard = getattr(descriptor_pool.Default(), name)

        def find(*args: Any) -> Any:
            try:
                return ours(*args)
            except KeyError:
                return standard(*args)

        return find


class _Reflection:
    """One reflection stream; every request is answered immediately."""

    def __init__(self, servicer: Any, outbound: Outbound) -> None:
        self._servicer = servicer
        self._outbound = outbound

    def receive(self, message: Any) -> None:
        for answer in self._servicer.ServerReflectionInfo(iter((message,)), None):
            self._outbound.send(answer)

    def close(self, reason: str) -> None:
        """Do nothing: there is no state to release."""


class StandardServices:
    """Health and reflection of one server; `table` is merged into the door's table."""

    def __init__(self, services: ServiceTable) -> None:
        self._names = {path.split("/")[1] for path in services}
        self._serving = False
        self._changed: asyncio.Future[None] | None = None
        names = (*sorted(self._names), HEALTH, reflection.SERVICE_NAME)
        self._reflection = reflection.ReflectionServicer(names, pool=_BothPools())

    def table(self) -> dict[str, Method]:
        """Return the methods by path."""
        question = health_pb2.HealthCheckRequest.FromString
        info = reflection_pb2.ServerReflectionRequest.FromString
        methods = (
            Method(f"/{HEALTH}/Check", Kind.UNARY, question, self._check, _never),
            Method(f"/{HEALTH}/Watch", Kind.SERVER_STREAM, question, self._watch, _never),
            Method(
                f"/{reflection.SERVICE_NAME}/ServerReflectionInfo",
                Kind.BIDI,
                info,
                self._reflect,
                _never,
            ),
        )
        return {
            method.path: replace(method, request_bytes_max=_REQUEST_BYTES) for method in methods
        }

    def serving(self, yes: bool) -> None:
        """Set the health status. Used on the event loop."""
        self._serving = yes
        changed, self._changed = self._changed, None
        if changed is not None and not changed.done():
            changed.set_result(None)

    def _status(self, name: str) -> Any:
        if name and name not in self._names:
            return None
        return _STATUS.SERVING if self._serving else _STATUS.NOT_SERVING

    def _check(self, request: Any, _ctx: RequestContext) -> Any:
        status = self._status(request.service)
        if status is None:
            raise RpcFailure(NOT_FOUND, f"unknown service {request.service}")
        return _STATUS(status=status)

    async def _watch(self, request: Any, _ctx: RequestContext) -> AsyncIterator[Any]:
        while True:
            # Before the answer: the status may change while the answer is written.
            if self._changed is None:
                self._changed = asyncio.get_running_loop().create_future()
            changed = self._changed
            status = self._status(request.service)
            yield _STATUS(status=_STATUS.SERVICE_UNKNOWN if status is None else status)
            await asyncio.shield(changed)

    def _reflect(self, _ctx: RequestContext, outbound: Outbound) -> _Reflection:
        return _Reflection(self._reflection, outbound)


def _never(error: WireError) -> Any:
    """Convert a wire error (an injected fault) to a gRPC status: these services have none."""
    raise RpcFailure(NOT_FOUND, error.message)
