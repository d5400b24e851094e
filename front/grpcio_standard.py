"""The two services that tools expect of any gRPC server: health and reflection.

Health (`grpc.health.v1`) says SERVING for the server as a whole and for each of its services until
the door drains. Reflection lists our services and describes them from our private descriptor pool,
which is not protobuf's default one (`proto/pool.py`); the standard services come from the default.
"""

from typing import Any

import grpc.aio
from google.protobuf import descriptor_pool
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection, reflection_pb2_grpc

from ..proto.pool import POOL
from .service import ServiceTable

_STANDARD = (health.SERVICE_NAME, reflection.SERVICE_NAME)


class _BothPools:
    """Looks things up in our pool, then in protobuf's default one; what reflection needs of a pool."""

    def __getattr__(self, name: str) -> Any:
        ours = getattr(POOL, name)
        standard = getattr(descriptor_pool.Default(), name)

        def find(*args: Any) -> Any:
            try:
                return ours(*args)
            except KeyError:
                return standard(*args)

        return find


class StandardServices:
    """Health and reflection of one server."""

    def __init__(self, services: ServiceTable) -> None:
        self._names = sorted({path.split("/")[1] for path in services})
        self._health = health.aio.HealthServicer()

    def register(self, server: grpc.aio.Server) -> None:
        """Add both; before the server starts."""
        health_pb2_grpc.add_HealthServicer_to_server(self._health, server)
        names = (*self._names, *_STANDARD)
        servicer = reflection.aio.ReflectionServicer(names, pool=_BothPools())
        reflection_pb2_grpc.add_ServerReflectionServicer_to_server(servicer, server)

    async def serving(self, yes: bool) -> None:
        """Say whether requests are welcome."""
        status = health_pb2.HealthCheckResponse
        value = status.SERVING if yes else status.NOT_SERVING
        for name in ("", *self._names):
            await self._health.set(name, value)
