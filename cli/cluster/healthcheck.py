"""`cometmq healthcheck`: the standard gRPC health service of brokers and nameservers.

Exit code 0 if every node is serving, 3 if one is not or does not answer: for containers and
scripts.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from ...operations.errors import Exit
from ..links import links
from ..options import endpoint_option, output_option
from ..output import show_document
from ..times import duration

if TYPE_CHECKING:
    import grpc

_CHECK = "/grpc.health.v1.Health/Check"
_SERVING = "SERVING"


@click.command()
@click.option(
    "--timeout",
    type=duration("s", least="100ms", most="60s"),
    default="3s",
    show_default=True,
    metavar="DURATION",
    help="Wait this long for the answer, as 500ms or in seconds.",
)
@endpoint_option
@output_option
def healthcheck(timeout: int, endpoint: str, output: str) -> int:
    """Check whether a node (broker, nameserver or proxy) is serving, or each of several.

    \b
    cometmq healthcheck --endpoint 127.0.0.1:8081
    """
    nodes = [one for one in endpoint.split(";") if one] or [endpoint]
    states = {one: _state(one, timeout / 1_000) for one in nodes}
    sick = [one for one, state in states.items() if state != _SERVING]
    if output == "json":
        state = states[sick[0]] if sick else _SERVING
        document = {"endpoint": endpoint, "healthy": not sick, "state": state}
        show_document({**document, "nodes": states} if len(states) > 1 else document)
        return Exit.UNHEALTHY if sick else Exit.DONE
    for one, state in states.items():
        if state == _SERVING:
            click.echo(f"{one} is serving.")
        else:
            way = f"`cometmq doctor connect {one}` checks the way to it."
            click.echo(f"cometmq: {one} is not healthy: {state}. {way}", err=True)
    return Exit.UNHEALTHY if sick else Exit.DONE


def _state(endpoint: str, timeout_s: float) -> str:
    import grpc
    from grpc_health.v1 import health_pb2

    with links().channel(endpoint) as link:
        check = link.unary_unary(
            _CHECK,
            request_serializer=health_pb2.HealthCheckRequest.SerializeToString,
            response_deserializer=health_pb2.HealthCheckResponse.FromString,
        )
        try:
            answer = check(health_pb2.HealthCheckRequest(), timeout=timeout_s)
        except grpc.RpcError as error:
            return _reason(error)
    name: str = health_pb2.HealthCheckResponse.ServingStatus.Name(answer.status)
    return name


def _reason(error: grpc.RpcError) -> str:
    import grpc

    code = error.code()
    if code is grpc.StatusCode.UNAVAILABLE:
        return "cannot connect"
    if code is grpc.StatusCode.DEADLINE_EXCEEDED:
        return "timeout"
    return f"{code.name} {error.details()}"
