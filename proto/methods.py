"""The RPC methods of a service, read from its protobuf descriptor: path, message classes,
streaming.

The descriptors live in the private pool (`pool`); importing `v1` and `v2` fills it.
"""

from functools import cache
from typing import Any

from google.protobuf import message_factory
from msgspec import Struct

from . import v1, v2  # noqa: F401 - define the services
from .pool import POOL


class RpcMethod(Struct, frozen=True):
    """One method of a service."""

    #: `/<full service name>/<method name>`, as HTTP/2 carries it.
    path: str
    request: Any
    response: Any
    #: True if the client sends a stream of requests.
    client_streaming: bool
    #: True if the server returns a stream of responses.
    server_streaming: bool


@cache
def rpc_methods(service: str) -> dict[str, RpcMethod]:
    """Return the methods of a service, by name. Raises KeyError for an unknown service."""
    message_class = message_factory.GetMessageClass
    return {
        method.name: RpcMethod(
            f"/{service}/{method.name}",
            message_class(method.input_type),
            message_class(method.output_type),
            method.client_streaming,
            method.server_streaming,
        )
        for method in POOL.FindServiceByName(service).methods
    }
