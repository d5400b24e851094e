"""Retries a push consumer's acknowledgements until the broker confirms.

The broker hides a message as long as the client that received it is connected. An acknowledgement
that is lost in an outage would leave the message hidden and unhandled. Therefore retryable
failures are repeated every second, a permanent refusal ends the attempt, and closing the consumer
ends all attempts. Acknowledgements made within 2 ms share a request.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

from ..proto.errors import is_retriable
from .clock import pause
from .consuming import acknowledge, change_invisible, forward_to_dead_letters
from .errors import BadRequest, Closed, CometError, NotFound

if TYPE_CHECKING:
    from .message import Message
    from .session import Session

logger = logging.getLogger(__name__)

_ACK_LINGER_S = 0.002
_ACKS_MAX = 32
_PAUSE_S = 1.0


class AckDispatcher:
    """Acknowledges, returns and dead-letters the messages of one push consumer."""

    def __init__(self, session: Session, settled: Callable[[int], None]) -> None:
        """`settled` is called with the number of messages whose acknowledgement has ended."""
        #: Set by the consumer's close: ends every retry.
        self.closing = asyncio.Event()
        self._session = session
        self._settled = settled
        self._handled: list[Message] = []
        self._acking: asyncio.Task[None] | None = None

    def ack_soon(self, message: Message) -> asyncio.Task[None] | None:
        """Acknowledge with the next request. Return the sending task if this call started one."""
        self._handled.append(message)
        if self._acking is not None and not self._acking.done():
            return None
        self._acking = asyncio.create_task(self._ack_after_linger())
        return self._acking

    async def _ack_after_linger(self) -> None:
        await asyncio.sleep(_ACK_LINGER_S)
        while self._handled:
            batch, self._handled = self._handled[:_ACKS_MAX], self._handled[_ACKS_MAX:]
            try:
                await self.acknowledge(batch)
            finally:
                self._settled(len(batch))

    async def acknowledge(self, messages: list[Message]) -> bool:
        """Retry until every message is acknowledged or permanently refused.

        Return False when the consumer closes first.
        """
        left = messages

        async def attempt() -> None:
            nonlocal left
            retryable = [
                (message, error)
                for message, error in await acknowledge(self._session, left)
                if is_retriable(error.code)
            ]
            if retryable:
                left = [message for message, _ in retryable]
                raise retryable[0][1]

        return await self._until_confirmed(attempt)

    async def nack(self, message: Message, pause_s: float) -> None:
        """Return a message: the broker delivers it again after `pause_s`."""
        await self._until_confirmed(
            lambda: change_invisible(self._session, message, pause_s, give_back=True)
        )

    async def dead_letter(self, message: Message, attempts_max: int) -> bool:
        """Move a message to the dead-letter queue. Return False when the consumer closes first."""
        return await self._until_confirmed(
            lambda: forward_to_dead_letters(self._session, message, attempts_max)
        )

    async def closes_within(self, seconds: float) -> bool:
        """Wait `seconds`. Return True at once when the consumer closes."""
        return await pause(seconds, self.closing)

    async def _until_confirmed(self, request: Callable[[], Awaitable[object]]) -> bool:
        while True:
            try:
                await request()
            except Closed:
                return False
            except (BadRequest, NotFound) as error:
                logger.info("push.handle_expired error=%s", error)
                return True
            except CometError as error:
                logger.warning("push.ack_failed error=%s", error)
            else:
                return True
            if await self.closes_within(_PAUSE_S):
                return False
