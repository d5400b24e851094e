"""Transaction producer: half messages that become visible when they are committed.

    async with TransactionProducer(endpoints, topics=["orders"], checker=is_paid) as producer:
        async with producer.transaction("orders", b"...") as transaction:
            await database.commit()          # leaving normally commits, an exception rolls back

A half message is invisible until its commit. If the process dies first, the broker calls the
`checker` of any producer of the topic and applies the returned resolution. A commit whose response
was lost is repeated; the broker executes it once (docs/formats/grpc-api.md, sections 5.10 and
10.4).
"""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import Awaitable, Callable, Coroutine, Generator, Sequence
from enum import Enum
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, Unpack

from ..proto import paths, v2
from .errors import CometError
from .interceptors import is_coroutine
from .message import Message, Receipt, read_message
from .producer import Extras, Producer, _unwrap
from .routes import queue_of_group

if TYPE_CHECKING:
    from .interceptors import Interceptor
    from .session import Options
    from .transport.addresses import Target
    from .transport.connection import Connection

logger = logging.getLogger(__name__)


class Resolution(Enum):
    """The resolution of a half message."""

    COMMIT = "commit"
    ROLLBACK = "rollback"
    #: Not decided yet: the broker calls the checker again later.
    UNKNOWN = "unknown"


Checker = Callable[[Message], "Resolution | Awaitable[Resolution]"]
_WIRE_RESOLUTIONS = {
    Resolution.COMMIT: v2.COMMIT,
    Resolution.ROLLBACK: v2.ROLLBACK,
    Resolution.UNKNOWN: v2.TRANSACTION_RESOLUTION_UNSPECIFIED,
}


class Transaction:
    """One half message, until it is committed or rolled back."""

    def __init__(self, producer: TransactionProducer, receipt: Receipt, target: Target) -> None:
        self.receipt = receipt
        self._producer = producer
        self._target = target
        self._decided: Resolution | None = None
        self._ended = False

    async def commit(self) -> None:
        """Make the message visible. Raises OutcomeUnknown, ConnectionFailed, RequestRefused.

        It may be repeated after a failure; a rollback is no longer possible.
        """
        await self._end(Resolution.COMMIT)

    async def rollback(self) -> None:
        """Discard the message."""
        await self._end(Resolution.ROLLBACK)

    async def _end(self, resolution: Resolution) -> None:
        if self._ended or self._decided not in (None, resolution):
            raise ValueError(f"cannot {resolution.value}: the transaction has already ended")
        self._decided = resolution
        receipt = self.receipt
        await self._producer.end(
            self._target, receipt.topic, receipt.message_id, receipt.transaction_id, resolution
        )
        self._ended = True

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, _: object, __: TracebackType | None
    ) -> None:
        if self._decided is not None:
            return  # decided inside the block
        if kind is None:
            await self._end(Resolution.COMMIT)
            return
        try:
            await self._end(Resolution.ROLLBACK)
        except CometError as error:
            # The caller gets the exception of the block; the broker will call the checker.
            logger.warning(
                "transaction.rollback_failed message=%s error=%s", self.receipt.message_id, error
            )


class _PendingTransaction:
    """Result of `transaction`: awaiting or entering it sends the half message."""

    def __init__(self, begin: Callable[[], Coroutine[Any, Any, Transaction]]) -> None:
        self._begin = begin
        self._transaction: Transaction | None = None

    def __await__(self) -> Generator[Any, None, Transaction]:
        return self._begin().__await__()

    async def __aenter__(self) -> Transaction:
        self._transaction = await self._begin()
        return self._transaction

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        assert self._transaction is not None
        await self._transaction.__aexit__(kind, error, trace)


class TransactionProducer(Producer):
    """A producer of transactions. Its topics are declared, for the broker's checks."""

    def __init__(
        self,
        endpoints: str,
        *,
        topics: Sequence[str],
        checker: Checker,
        interceptors: Sequence[Interceptor] = (),
        **options: Unpack[Options],
    ) -> None:
        """A checker that is not a coroutine function runs in a thread."""
        super().__init__(endpoints, topics=topics, interceptors=interceptors, **options)
        self._checker = checker
        self._in_thread = not is_coroutine(checker)
        self._session.on_orphan = self._check

    def transaction(self, topic: str, body: bytes, **extras: Unpack[Extras]) -> _PendingTransaction:
        """Send a half message: await the result or use it with `async with`."""

        async def begin() -> Transaction:
            message = self._message(topic, body, "", extras, transactional=True)
            with self._tracked():
                receipt = _unwrap(await self._send([message], None))
                return Transaction(self, receipt, await self._target(topic, receipt))

        return _PendingTransaction(begin)

    async def end(
        self,
        target: Target | None,
        topic: str,
        message_id: str,
        transaction_id: str,
        resolution: Resolution,
        *,
        for_check: bool = False,
    ) -> None:
        """Send the resolution, with retries. `for_check`: it answers the broker's check."""
        request = v2.EndTransactionRequest(
            topic=self._session.resource(topic),
            message_id=message_id,
            transaction_id=transaction_id,
            resolution=_WIRE_RESOLUTIONS[resolution],
            source=v2.SOURCE_SERVER_CHECK if for_check else v2.SOURCE_CLIENT,
        )
        await self._session.call_until_done(
            target, paths.END_TRANSACTION, request, v2.EndTransactionResponse
        )

    async def _target(self, topic: str, receipt: Receipt) -> Target:
        """Return the endpoint that stored the half message: Apache's proxy needs the same one."""
        route = await self._session.route(topic)
        for queue in route.writable:
            if queue.broker == receipt.broker:
                return queue.target
        fallback = queue_of_group(route.writable, "")
        return self._session.access_point if fallback is None else fallback.target

    async def _check(
        self, connection: Connection, command: v2.RecoverOrphanedTransactionCommand
    ) -> None:
        message = read_message(command.message, source=connection.target)
        if self._in_thread:
            answer = await asyncio.to_thread(self._checker, message)
        else:
            answer = self._checker(message)
        resolution = await answer if inspect.isawaitable(answer) else answer
        if not isinstance(resolution, Resolution):
            raise TypeError(f"the checker returned {resolution!r}, not a Resolution")
        await self.end(
            connection.target,
            message.topic,
            message.message_id,
            command.transaction_id,
            resolution,
            for_check=True,
        )
