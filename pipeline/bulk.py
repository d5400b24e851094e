"""Bulk sends from a task: bounded chunks, a rate limit, one result for all messages.

A return means that every message is stored according to the broker's settings. Messages of one
message group are sent in order; normal messages are sent in batches without an order. A failure
that outlasts the SDK's retries fails the task, which Spark repeats: delivery is at least once.
"""

import asyncio
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from ..client.clock import steady_s
from ..client.errors import CometError
from ..client.outgoing import Outgoing
from ..client.producer import Producer
from ..client.session import Options
from ..client.transport.credentials import Credentials
from ..client.transport.tls import Tls
from ..proto import v2
from .errors import PipelineError

#: Messages and bytes in flight; a task holds no more of them.
CHUNK_MESSAGES = 2048
CHUNK_BYTES = 8 << 20
#: Single sends in flight, of messages that cannot be batched.
_SINGLES = 64
#: Chunks per second of a rate-limited send, for an even rate.
_CHUNKS_A_SECOND = 10


@dataclass(frozen=True, slots=True)
class SendTarget:
    """Cluster and send settings; pickled into tasks."""

    endpoints: str
    access_key: str = ""
    secret_key: str = field(default="", repr=False)
    session_token: str = field(default="", repr=False)
    tls: Tls | None = None
    timeout_s: float = 60.0
    rate: float = 0.0  #: messages per second of one task; 0: unlimited

    def producer(self) -> "BulkProducer":
        """Return a producer that is not started. Raises ValueError."""
        options = Options(request_timeout=min(self.timeout_s, 15.0), timeout=self.timeout_s)
        if self.access_key:
            keys = (self.access_key, self.secret_key, self.session_token)
            options["credentials"] = Credentials(*keys)
        if self.tls is not None:
            options["tls"] = True
            options["tls_roots"] = self.tls.roots
            options["tls_certificate"] = self.tls.certificate
            options["tls_key"] = self.tls.key
            options["tls_server_name"] = self.tls.name
        return BulkProducer(self.endpoints, **options)


@dataclass(frozen=True, slots=True)
class Sent:
    """Counts of one task."""

    messages: int = 0
    bytes: int = 0
    left_out: int = 0  #: messages without a body, which brokers refuse


class BulkProducer(Producer):
    """A producer of messages that are already built."""

    async def send_outgoing(self, messages: list[Outgoing]) -> None:
        """Send all messages. Raises PipelineError if one is not stored."""
        plain: dict[str, list[Outgoing]] = {}
        groups: dict[tuple[str, str], list[Outgoing]] = {}
        single: list[Outgoing] = []
        for message in messages:
            self._check_size(message)
            if message.kind == v2.NORMAL:
                plain.setdefault(message.topic, []).append(message)
            elif message.group:
                groups.setdefault((message.topic, message.group), []).append(message)
            else:
                single.append(message)
        single_slots = asyncio.Semaphore(_SINGLES)

        async def in_order(sequence: list[Outgoing]) -> list[object]:
            async with single_slots:
                return list(await self._one_by_one(sequence))

        async def batched(batch: list[Outgoing]) -> list[object]:
            return list(await self._batcher.send_all(batch))

        work = [batched(batch) for batch in plain.values()]
        work += [in_order(each) for each in [*groups.values(), *([one] for one in single)]]
        for results in await asyncio.gather(*work):
            refuse_failures(results)


def refuse_failures(results: Iterable[object]) -> None:
    """Raise PipelineError if any message was not stored."""
    failed = [result for result in results if isinstance(result, CometError)]
    if failed:
        text = f"{len(failed)} messages were not stored; first error: {failed[0]}"
        raise PipelineError(text) from failed[0]


def send_all(target: SendTarget, messages: Iterable[Outgoing]) -> Sent:
    """Send messages and wait until all are stored. Raises PipelineError, CometError, ValueError."""
    return asyncio.run(_send_all(target, messages))


async def _send_all(target: SendTarget, messages: Iterable[Outgoing]) -> Sent:
    count = size = 0
    limit = CHUNK_MESSAGES
    if target.rate:
        limit = max(1, min(limit, int(target.rate / _CHUNKS_A_SECOND)))
    async with target.producer() as producer:
        began_s = steady_s()
        for chunk in _chunks(messages, limit):
            await producer.send_outgoing(chunk)
            count += len(chunk)
            size += sum(len(one.body) for one in chunk)
            if target.rate:
                await asyncio.sleep(max(0.0, began_s + count / target.rate - steady_s()))
    return Sent(count, size)


def _chunks(messages: Iterable[Outgoing], limit: int) -> Iterator[list[Outgoing]]:
    chunk: list[Outgoing] = []
    size = 0
    for message in messages:
        chunk.append(message)
        size += len(message.body)
        if len(chunk) >= limit or size >= CHUNK_BYTES:
            yield chunk
            chunk, size = [], 0
    if chunk:
        yield chunk
