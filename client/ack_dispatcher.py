"""What a push consumer tells the broker of its messages, until the broker has understood.

It cannot be left unsaid: the broker hides a message for as long as the client that got it lives, so an
acknowledgement that was lost in an outage would leave the message in nobody's hands. Promises: what
fails in a way that may pass is said again every second; what is refused for good is done; a close ends
all of it. Acknowledgements of a moment share a request.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

from ..proto.errors import is_retriable
from .consuming import acknowledge, change_invisible, give_up
from .errors import BadRequest, Closed, CometError, NotFound

if TYPE_CHECKING:
    from .message import Message
    from .session import Session

log = logging.getLogger(__name__)

_ACK_LINGER_S = 0.002
_ACKS_MAX = 32
_PAUSE_S = 1.0


class AckDispatcher:
    """Of one push consumer."""

    def __init__(self, session: Session, settled: Callable[[int], None]) -> None:
        """`settled` is called with the number of messages whose acknowledgement is over."""
        self.closing = asyncio.Event()
        self._session = session
        self._settled = settled
        self._done: list[Message] = []
        self._acking: asyncio.Task[None] | None = None

    def ack_soon(self, message: Message) -> asyncio.Task[None] | None:
        """Acknowledge with the next request; the task that will, when this began one."""
        self._done.append(message)
        if self._acking is not None and not self._acking.done():
            return None
        self._acking = asyncio.create_task(self._ack_in_a_moment())
        return self._acking

    async def _ack_in_a_moment(self) -> None:
        await asyncio.sleep(_ACK_LINGER_S)
        while self._done:
            some, self._done = self._done[:_ACKS_MAX], self._done[_ACKS_MAX:]
            try:
                await self.acknowledge(some)
            finally:
                self._settled(len(some))

    async def acknowledge(self, messages: list[Message]) -> bool:
        """Until every one is acknowledged, or refused for good; False when a close came first."""
        left = messages

        async def once() -> None:
            nonlocal left
            passing = [
                (message, error)
                for message, error in await acknowledge(self._session, left)
                if is_retriable(error.code)
            ]
            if passing:
                left = [message for message, _ in passing]
                raise passing[0][1]

        return await self._until_understood(once)

    async def again_later(self, message: Message, pause_s: float) -> None:
        """Give a message back for a while."""
        await self._until_understood(
            lambda: change_invisible(self._session, message, pause_s, give_back=True)
        )

    async def give_up(self, message: Message, attempts_max: int) -> bool:
        """Make it a dead letter; False when a close came first."""
        return await self._until_understood(lambda: give_up(self._session, message, attempts_max))

    async def closes_within(self, seconds: float) -> bool:
        """Pause; whether a close ends it."""
        try:
            async with asyncio.timeout(seconds):
                await self.closing.wait()
        except TimeoutError:
            return False
        return True

    async def _until_understood(self, say: Callable[[], Awaitable[object]]) -> bool:
        while True:
            try:
                await say()
            except Closed:
                return False
            except (BadRequest, NotFound) as error:
                log.info("push.handle_expired error=%s", error)
                return True
            except CometError as error:
                log.warning("push.not_told error=%s", error)
            else:
                return True
            if await self.closes_within(_PAUSE_S):
                return False
