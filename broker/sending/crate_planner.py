"""The crate's planner of sends: requests of one turn of the loop, from bytes to the log.

The native crate decodes the requests, makes the records of those that are common (as
`native/src/broker/sent.rs` defines it), their queue units and their answers, in one call.
Everything that it does not accept is planned in Python, in the order of arrival. Decisions stay
here and in `sender.py`: the caller has checked that messages may be appended, and waits for
durability.
Promises: a request that is accepted here gets the same records, units and answer there (a test
compares both).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec import Struct
from msgspec.structs import astuple

from ...proto.errors import WireError
from ...proto.native import Native
from ..base.counters import SIZE_BOUNDS
from ..messages.stored_properties import frame
from ..messages.validation import check_topic
from .answer import ANSWER_OK
from .planner import Appended

if TYPE_CHECKING:
    from cometmq_native import codec

    from ...store.message_store import MessageStore
    from ..base.runtime import Runtime
    from ..metadata.tables import Metadata
    from ..trace.service import TraceService
    from .grpc_send import GrpcRow
    from .planner import Batch
    from .topic_template import Origin, TopicTemplates


class ClassicFormat(Struct, frozen=True):
    """What the crate needs for messages of classic clients (`broker/classic/taken_send.py`)."""

    #: Properties that the broker adds, after those of the client.
    added: tuple[tuple[str, str], ...]
    #: Names of properties with which a message is planned in Python.
    reserved: tuple[str, ...]
    #: Bits of `sysFlag` that are stored.
    kept_bits: int
    #: Header of an answer around its id, queue, position, queue offset and opaque.
    answer: tuple[bytes, ...]


class CratePlanner:
    """Appends common requests with the native crate."""

    def __init__(
        self,
        native: Native,
        *,
        runtime: Runtime,
        store: MessageStore,
        metadata: Metadata,
        origin: Origin,
        templates: TopicTemplates,
        trace: TraceService | None,
    ) -> None:
        self._native = native
        self._planner = native.send_planner(origin.max_body, ANSWER_OK, SIZE_BOUNDS)
        self._takes_frames = False
        self._store = store
        self._metadata = metadata
        self._counters = runtime.counters
        self._origin = origin
        self._templates = templates
        self._trace = trace
        self._wall_ms = runtime.clock.wall_ms

    def count_messages(self, raw: bytes) -> int:
        """Return the number of messages of a request of gRPC, without decoding it."""
        return self._native.count_messages(raw)

    def accept_frames(self, classic: ClassicFormat) -> None:
        """Accept the frames of classic clients, too."""
        self._takes_frames = True
        limits = (self._origin.max_body, ANSWER_OK, SIZE_BOUNDS)
        self._planner = self._native.send_planner(*limits, astuple(classic))

    def frame_target(self, frame: bytes) -> tuple[str, int] | None:
        """Return topic and opaque of a classic client's send, if it is common and its queue exists;
        else None."""
        target = self._planner.classic_target(frame) if self._takes_frames else None
        if target is None:
            return None
        name, queue_id, opaque = target
        if self._topic(name) is None or queue_id >= self._metadata.topics[name].write_queues:
            return None
        return name, opaque

    def append(self, batch: Batch, at: int, until: int) -> Appended:
        """Append up to the first request that is not common; some before it may be left, which the
        next call appends. Nothing if the store refuses messages or the log cannot be written:
        Python gives the reason for each message."""
        plan = self.plan(batch, at)
        ends = plan.ends if plan is not None else []
        if plan is None or not ends:
            return Appended(at, until if plan is None else plan.resume, [], [], 0)
        end = at + len(ends)
        return Appended(end, plan.resume, batch.sends[at:end], plan.answers, ends[-1])

    def plan(self, batch: Batch | GrpcRow, at: int) -> codec.SendPlan | None:
        """Append as `append` does; None if the store does not accept messages."""
        plan: codec.SendPlan | None = None

        def encode(begin: int, limit: int, store_ms: int) -> codec.SendPlan:
            nonlocal plan
            place = (begin, limit, store_ms, self._wall_ms(), self._origin.store_host)
            next_number = self._store.writer.next_number
            plan = batch.plan(self._planner, at, place, self._topic, next_number)
            return plan

        if self._store.writer.append_encoded(encode) is None or plan is None:
            return None
        for name, count in plan.turns:
            self._templates.of(self._metadata.topics[name]).turn += count
        for name, message_type, messages, size, sizes in plan.counts:
            self._counters.add_sent_requests(name, message_type, messages, size, sizes)
        if self._trace is not None:
            self._trace.stored(plan.data)
        return plan

    def _topic(self, name: str) -> tuple[codec.SendTemplate, int] | None:
        """Return the crate's template of a topic and the number of its requests so far; None if
        its messages are planned in Python."""
        topic = self._metadata.topics.get(name)
        if topic is None:
            return None
        try:
            check_topic(name)
        except WireError:
            return None
        template = self._templates.of(topic)
        if not template.common:
            return None
        if template.native is None:
            template.native = self._native.send_template(
                name,
                topic.message_type,
                topic.write_queues,
                *(part.encode() for part in frame(self._origin.region, self._origin.cluster, name)),
            )
        return template.native, template.turn
