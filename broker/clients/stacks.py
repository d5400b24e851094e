"""Stacks of clients: asks a client for the stack of its threads over its telemetry stream.

The client answers with the nonce of the request, or with a status alone if it does not support the
command; official clients in Python and Rust ignore it (docs/formats/grpc-api.md, section 8.6).
"""

from __future__ import annotations

import asyncio
import secrets
from typing import TYPE_CHECKING

from ...front.service import OutboundFull
from ...proto import v2
from ...proto.errors import WireError, code_name

if TYPE_CHECKING:
    from .registry import Client

#: Time for the answer, as in RocketMQ.
ANSWER_S = 5.0
#: Requests that wait at the same time: people make them one by one.
WAITING_MAX = 64
#: Characters of a stack: some hundred threads.
STACK_MAX = 256 << 10


class ClientStacks:
    """The requests that wait for an answer."""

    def __init__(self) -> None:
        self._waiting: dict[str, tuple[str, asyncio.Future[str]]] = {}

    async def ask(self, client: Client) -> str:
        """Return the stack of a client. Raises WireError."""
        stream = next((one for one in reversed(client.streams) if not one.finished), None)
        if stream is None:
            raise WireError(
                v2.NOT_FOUND, f"client {client.client_id} has no telemetry stream to this cluster"
            )
        if len(self._waiting) >= WAITING_MAX:
            raise WireError(v2.TOO_MANY_REQUESTS, "too many clients are asked for their stacks")
        nonce = secrets.token_hex(8)
        answer: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self._waiting[nonce] = client.client_id, answer
        try:
            command = v2.PrintThreadStackTraceCommand(nonce=nonce)
            stream.send(v2.TelemetryCommand(print_thread_stack_trace_command=command))
            async with asyncio.timeout(ANSWER_S):
                return await answer
        except TimeoutError:
            raise WireError(v2.REQUEST_TIMEOUT, _silence(client)) from None
        except OutboundFull:
            raise WireError(
                v2.TOO_MANY_REQUESTS, f"client {client.client_id} does not read its stream"
            ) from None
        finally:
            del self._waiting[nonce]

    def answered(self, client_id: str, command: v2.TelemetryCommand) -> None:
        """Take an answer of a client; one that nothing waits for is ignored."""
        trace = command.thread_stack_trace
        for nonce, (asked, answer) in self._waiting.items():
            # A refusal has no nonce: it is the answer to each request to this client.
            if asked != client_id or trace.nonce not in ("", nonce) or answer.done():
                continue
            if trace.nonce and command.status.code in (v2.CODE_UNSPECIFIED, v2.OK):
                answer.set_result(trace.thread_stack_trace[:STACK_MAX])
            elif command.status.code not in (v2.CODE_UNSPECIFIED, v2.OK):
                answer.set_exception(WireError(v2.UNSUPPORTED, _refused(client_id, command.status)))


def is_refusal(command: v2.TelemetryCommand) -> bool:
    """Return whether a message without a command refuses a command of the server."""
    return command.status.code not in (v2.CODE_UNSPECIFIED, v2.OK)


def _refused(client_id: str, status: v2.Status) -> str:
    reason = status.message or code_name(status.code)
    return f"client {client_id} does not support the request for its stack: {reason}"


def _silence(client: Client) -> str:
    return (
        f"client {client.client_id} ({client.language} {client.version}) did not answer within"
        f" {ANSWER_S:g} s; official clients in Python and Rust ignore the request"
    )
