"""Conversion of several records to wire messages in one call of the native crate.

A run holds messages of the common form. It ends with the one that reaches a limit, and before a
record of another form: compressed, with malformed properties, or without attempts left. The caller
converts that one by `convert.py`, with the same bytes for what both accept, and goes on with the
next run. Without the crate every run is empty.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from msgspec import Struct

from ...store.format.properties import DELAY_LEVELS_MS
from .convert import HIDDEN_PROPERTIES
from .filters import TagFilter

if TYPE_CHECKING:
    from collections.abc import Sequence

    from cometmq_native import WireMessages

    from ...proto.native import Native
    from ...store.format.results import StoredRecord
    from .filters import Filter


class Room(NamedTuple):
    """The limits of a run: messages, and bytes that the last message reaches."""

    messages: int
    size: int


class Receipts(NamedTuple):
    """What the receipt handles of a run share."""

    #: The fields between the start offset and the queue offset.
    middle: str
    #: The first offset of the batch; -1: that of the first message.
    start: int
    invisible_ms: int
    #: Attempts after which a message is not delivered.
    attempts_max: int


class Run(NamedTuple):
    """Converted messages, the queue offsets of their records, and their bytes."""

    items: list[bytes]
    offsets: list[int]
    size: int
    #: Index of the first record after the run; those before it without a message were filtered.
    end: int


class RunConverter(Struct, frozen=True):
    """Makes runs of records; `native` is the crate's converter, None without one."""

    native: WireMessages | None

    def run(
        self,
        topic: bytes,
        records: list[StoredRecord],
        begin: int,
        room: Room,
        *,
        wanted: Filter | None,
        receipts: Receipts | None = None,
        attempts: Sequence[int] | None = None,
    ) -> Run:
        """Convert records from index `begin` on; `topic` is the result of `topic_field`.

        `attempts`: the number of each record's delivery; None: all are the first.
        """
        if self.native is None or not (wanted is None or isinstance(wanted, TagFilter)):
            return Run([], [], 0, begin)
        tags = None if wanted is None else wanted.tags
        return Run(*self.native.run(topic, records, begin, *room, tags, receipts, attempts))


def run_converter(native: Native | None) -> RunConverter:
    """Return the converter with the crate, or one whose runs are empty."""
    if native is None:
        return RunConverter(None)
    return RunConverter(native.wire_messages(sorted(HIDDEN_PROPERTIES), DELAY_LEVELS_MS))
