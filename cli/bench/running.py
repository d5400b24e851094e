"""One run: warm-up, the measured phase, and the search for lost and duplicated messages.

The warm-up also gives the new consumer group an offset in every queue, so that it receives all
later messages: a new group starts at the end of an old queue (docs/formats/broker-semantics.md,
section 3).
"""

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from ...client.errors import CometError, OutcomeUnknown
from ...client.message import Message
from ...client.producer import Extras, Producer
from ...client.session import Options
from ...client.simple_consumer import SimpleConsumer
from ...client.transactions import Resolution, TransactionProducer
from ...operations.errors import CliError
from .latency import Latencies, Point
from .ledger import MESSAGES_MAX, Ledger, Outcome
from .pacing import ClosedLoop, OpenLoop, Pace
from .processor_time import ProcessorTime, Used
from .workloads import Bodies, Measured, Workload

_INVISIBLE_S = 30.0
# A message that a consumer lost is delivered again after the invisible time; wait longer than that.
_SILENCE_S = _INVISIBLE_S + 10.0
_POLL_S = 1.0
# Delayed messages are sent before the time at which all are due; this many a second, and a margin.
_DELAYED_PER_S, _DELAYED_MARGIN_S = 1_000, 3.0
_WARM_UP_DELAY_S = 0.2
_WARM_UP_SENDS = 64
_SECOND_S = 1.0
# A receive run lasts at most this much longer than its last acknowledgement.
_MISSING_PERIOD_S = 0.005

Send = Callable[[int, int], Awaitable[None]]


@dataclass(frozen=True, slots=True)
class Load:
    """How much is sent and received, and how."""

    size_bytes: int
    #: Sends in flight of a closed loop; most of an open loop.
    in_flight: int
    #: Messages of one send.
    send_batch: int
    #: Most messages of one receive.
    receive_batch: int
    #: Sends due in a second; None: closed loop.
    rate: int | None
    seconds: float
    messages: int | None
    warm_up_s: float
    receivers: int


@dataclass(frozen=True, slots=True)
class Measurement:
    """What a run found."""

    ledger: Ledger
    latencies: Latencies
    seconds: float
    used: Used


class Run:
    """One run of a workload against existing topics and groups."""

    def __init__(
        self,
        workload: Workload,
        load: Load,
        *,
        endpoints: str,
        topic: str,
        group: str,
        servers: list[tuple[str, int]],
        options: Options,
        progress: Callable[[str, Point | None], None],
    ) -> None:
        """`progress` is called with the name of each phase, and every second with a point."""
        self._workload = workload
        self._load = load
        self._endpoints = endpoints
        self._topic = topic
        self._group = group
        self._servers = servers
        self._options = options
        self._progress = progress
        self._ledger = Ledger(workload.step)
        self._latencies = Latencies()
        self._bodies = Bodies(load.size_bytes)
        self._deliver_at: datetime | None = None
        self._is_measuring = False
        self._first_measured = 0
        self._last_reception_s = time.monotonic()

    async def measure(self) -> Measurement:
        """Run. Raises CometError, CliError."""
        async with self._producer() as producer, self._consumer() as consumer:
            send = self._send_of(producer)
            await self._warm_up(send, consumer)
            self._first_measured = self._ledger.begun
            phases = {
                Measured.SEND: self._measure_sends,
                Measured.RECEIVE: self._measure_receives,
                Measured.DELIVERY: self._measure_deliveries,
                Measured.LATENESS: self._measure_lateness,
            }
            seconds, used = await phases[self._workload.measured](send, consumer)
            self._progress("search for lost and duplicated messages", None)
            await self._receive_all(consumer)
        return Measurement(self._ledger, self._latencies, seconds, used)

    # --- phases -----------------------------------------------------------------------------------

    async def _warm_up(self, send: Send, consumer: SimpleConsumer) -> None:
        self._progress("warm-up", None)
        is_delayed = self._workload.measured is Measured.LATENESS
        if is_delayed:  # delayed by so little that the consumers can await them
            self._deliver_at = datetime.fromtimestamp(time.time() + _WARM_UP_DELAY_S, UTC)
        pace = ClosedLoop(seconds=0.0 if is_delayed else self._load.warm_up_s)
        await self._send_all(send, pace)
        # At least one round of all queues.
        await self._send_all(send, ClosedLoop(sends=_WARM_UP_SENDS))
        await self._receive_all(consumer)

    async def _measure_sends(self, send: Send, _consumer: SimpleConsumer) -> tuple[float, Used]:
        self._progress("send", None)
        return await self._measured(lambda: self._send_all(send, self._pace()))

    async def _measure_receives(self, send: Send, consumer: SimpleConsumer) -> tuple[float, Used]:
        self._progress(f"send {self._load.messages} messages", None)
        await self._send_all(send, self._pace())
        self._progress("receive and acknowledge", None)
        return await self._measured(lambda: self._receive_all(consumer))

    async def _measure_deliveries(self, send: Send, consumer: SimpleConsumer) -> tuple[float, Used]:
        self._progress("send and receive", None)

        async def until_received() -> None:
            await self._send_all(send, self._pace())
            await self._nothing_missing()

        return await self._measured(lambda: self._while_receiving(consumer, until_received()))

    async def _measure_lateness(self, send: Send, consumer: SimpleConsumer) -> tuple[float, Used]:
        messages = self._load.messages or 0
        in_s = messages / _DELAYED_PER_S + _DELAYED_MARGIN_S
        due_s = time.time() + in_s
        self._deliver_at = datetime.fromtimestamp(due_s, UTC)
        self._progress(f"send {messages} messages that are due in {in_s:.0f} s", None)
        await self._send_all(send, self._pace())
        if time.time() >= due_s:
            raise CliError("The sends took longer than the delay: use fewer --messages.")
        self._progress("receive", None)
        return await self._measured(lambda: self._receive_all(consumer))

    async def _measured(self, work: Callable[[], Coroutine[Any, Any, None]]) -> tuple[float, Used]:
        """Return the seconds and the CPU time of the work."""
        stopwatch, began_s = ProcessorTime(self._servers), time.perf_counter()
        self._is_measuring = True
        ticking = asyncio.ensure_future(self._tick())
        try:
            await work()
        finally:
            self._is_measuring = False
            ticking.cancel()
        seconds, used = time.perf_counter() - began_s, stopwatch.read()
        if self._latencies.messages:
            self._latencies.end_second()
        return seconds, used

    async def _tick(self) -> None:
        while True:
            await asyncio.sleep(_SECOND_S)
            self._progress("", self._latencies.end_second())

    # --- sends ------------------------------------------------------------------------------------

    def _pace(self) -> Pace:
        load = self._load
        if load.rate is not None:
            return OpenLoop(load.rate / load.send_batch, load.seconds)
        if load.messages is not None:
            return ClosedLoop(sends=-(-load.messages // load.send_batch))
        return ClosedLoop(seconds=load.seconds)

    async def _send_all(self, send: Send, pace: Pace) -> None:
        """Send until the pace ends; at most `in_flight` sends are in flight."""

        async def sender() -> None:
            while (due_ns := await pace.next()) is not None:
                if self._ledger.begun + self._load.send_batch > MESSAGES_MAX:
                    raise CliError(f"A run has at most {MESSAGES_MAX:,} messages.")
                await send(due_ns, self._load.send_batch)

        async with asyncio.TaskGroup() as tasks:
            for _ in range(self._load.in_flight):
                tasks.create_task(sender())

    def _send_of(self, producer: Producer) -> Send:
        if isinstance(producer, TransactionProducer):

            async def commit(number: int, body: bytes) -> None:
                async with producer.transaction(self._topic, body):
                    pass

            return self._single(commit)

        async def send(number: int, body: bytes) -> None:
            await producer.send(self._topic, body, **self._extras(number))

        async def send_batch(due_ns: int, count: int) -> None:
            numbers = [self._ledger.begin() for _ in range(count)]
            bodies = [self._bodies.make(number, due_ns) for number in numbers]
            results = await producer.send_many(self._topic, bodies)
            for number, result in zip(numbers, results, strict=True):
                self._sent(number, result if isinstance(result, CometError) else None)
            self._record(Measured.SEND, time.perf_counter_ns() - due_ns, count)

        return self._single(send) if self._load.send_batch == 1 else send_batch

    def _single(self, send: Callable[[int, bytes], Awaitable[None]]) -> Send:
        async def send_one(due_ns: int, _count: int) -> None:
            number = self._ledger.begin()
            try:
                await send(number, self._bodies.make(number, due_ns))
            except CometError as error:
                self._sent(number, error)
            else:
                self._sent(number, None)
                self._record(Measured.SEND, time.perf_counter_ns() - due_ns, 1)

        return send_one

    def _extras(self, number: int) -> Extras:
        extras = self._workload.extras(number)
        if self._deliver_at is not None:
            extras["deliver_at"] = self._deliver_at
        return extras

    def _sent(self, number: int, error: CometError | None) -> None:
        outcome = Outcome.ACKNOWLEDGED
        if error is not None:
            is_unknown = isinstance(error, OutcomeUnknown)
            outcome = Outcome.UNKNOWN if is_unknown else Outcome.FAILED
        self._ledger.sent(number, outcome, f"{type(error).__name__}: {error}" if error else "")

    # --- receives ---------------------------------------------------------------------------------

    async def _receive_all(self, consumer: SimpleConsumer) -> None:
        """Receive until no acknowledged message is missing, or none arrives any more."""
        await self._while_receiving(consumer, self._nothing_missing())

    async def _nothing_missing(self) -> None:
        self._last_reception_s = time.monotonic()
        while self._ledger.missing:
            if time.monotonic() - self._last_reception_s > _SILENCE_S:
                return
            await asyncio.sleep(_MISSING_PERIOD_S)

    async def _while_receiving(
        self, consumer: SimpleConsumer, work: Coroutine[Any, Any, None]
    ) -> None:
        receivers = [
            asyncio.ensure_future(self._receive(consumer)) for _ in range(self._load.receivers)
        ]
        working = asyncio.ensure_future(work)
        try:
            done, _ = await asyncio.wait((working, *receivers), return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()
        finally:
            for task in (working, *receivers):
                task.cancel()
            await asyncio.gather(working, *receivers, return_exceptions=True)

    async def _receive(self, consumer: SimpleConsumer) -> None:
        while True:
            began_ns = time.perf_counter_ns()
            found = await consumer.receive(
                self._load.receive_batch,
                invisible_for=_INVISIBLE_S,
                wait=_POLL_S,
            )
            if not found:
                continue
            self._received(found)
            # The acknowledgement is not cancelled: its messages would be delivered again.
            await asyncio.shield(consumer.ack_all(found))
            self._record(Measured.RECEIVE, time.perf_counter_ns() - began_ns, len(found))

    def _received(self, found: list[Message]) -> None:
        now_ns = time.perf_counter_ns()
        self._last_reception_s = time.monotonic()
        for message in found:
            read = self._bodies.read(message.body)
            if read is None:
                continue
            number, due_ns = read
            self._ledger.received(number, message.group)
            if number < self._first_measured:
                continue
            self._record(Measured.DELIVERY, now_ns - due_ns, 1)
            if self._workload.measured is Measured.LATENESS and self._deliver_at is not None:
                late_s = time.time() - self._deliver_at.timestamp()
                self._record(Measured.LATENESS, int(late_s * 1e9), 1)

    def _record(self, measured: Measured, latency_ns: int, messages: int) -> None:
        if self._is_measuring and measured is self._workload.measured:
            self._latencies.record(latency_ns, messages)

    # --- clients ----------------------------------------------------------------------------------

    @asynccontextmanager
    async def _producer(self) -> AsyncIterator[Producer]:
        if self._workload.topic_type == "transaction":
            producer: Producer = TransactionProducer(
                self._endpoints,
                topics=[self._topic],
                checker=lambda _message: Resolution.COMMIT,
                **self._options,
            )
        else:
            producer = Producer(
                self._endpoints,
                topics=[self._topic],
                batch_size=self._load.send_batch,
                **self._options,
            )
        async with producer:
            yield producer

    @asynccontextmanager
    async def _consumer(self) -> AsyncIterator[SimpleConsumer]:
        async with SimpleConsumer(
            self._endpoints,
            group=self._group,
            topics={self._topic: self._workload.subscription},
            **self._options,
        ) as consumer:
            yield consumer
