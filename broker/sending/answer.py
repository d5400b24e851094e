"""Answers of SendMessage: one entry per message, or one status for the whole request.

Source: docs/formats/grpc-api.md, section 5.5 (entries, top status, store results) and
docs/formats/broker-semantics.md, section 10 (the guard that refused). Promises: if anything was
stored, the answer has one entry per message in the order of the request; an answer that fails as a
whole has no entries; a refusal under load names its guard in brackets. The bytes are encoded by
hand (`messages/wire.py`), because this code runs for every message sent.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from msgspec import Struct

from ...proto import v2
from ...proto.errors import WireError, code_name
from ...store.format.results import AppendResult, PutStatus
from ..messages.wire import STATUS_OK, field, receipt, status, varint

if TYPE_CHECKING:
    from ...store.message_store import MessageStore

ANSWER_OK = field(b"\x0a", STATUS_OK)
_PUT_OK = PutStatus.PUT_OK

# The names of the guards are the reference's: dashboards and runbooks search for them.
QUEUE_FULL = "[REJECTREQUEST] too many sends wait: flow limit, sendThreadPoolQueueCapacity"
BYTES_FULL = "[REJECTREQUEST] too many bytes wait for the log: flow limit"
TOO_OLD = "[TIMEOUT_CLEAN_QUEUE] the request waited longer than waitTimeMillsInSendQueue"
HUNG = (
    "[PCBUSY_CLEAN_QUEUE] the page cache is busy: a write to the log took longer than "
    "osPageCacheBusyTimeOutMills"
)

FAILURES = {
    PutStatus.MESSAGE_ILLEGAL: (
        v2.MESSAGE_BODY_TOO_LARGE,
        "the message is too large for the store",
    ),
    PutStatus.PROPERTIES_SIZE_EXCEEDED: (
        v2.MESSAGE_PROPERTIES_TOO_LARGE,
        "the properties are too large for the store",
    ),
    PutStatus.END_OF_FILE: (v2.INTERNAL_SERVER_ERROR, "the message does not fit a log segment"),
    PutStatus.FLUSH_DISK_TIMEOUT: (
        v2.MASTER_PERSISTENCE_TIMEOUT,
        "not flushed in time: the outcome is unknown",
    ),
    PutStatus.FLUSH_SLAVE_TIMEOUT: (
        v2.SLAVE_PERSISTENCE_TIMEOUT,
        "not replicated in time: the outcome is unknown",
    ),
    PutStatus.OS_PAGE_CACHE_BUSY: (v2.TOO_MANY_REQUESTS, HUNG),
    PutStatus.LMQ_CONSUME_QUEUE_NUM_EXCEEDED: (
        v2.LITE_TOPIC_QUOTA_EXCEEDED,
        "there are too many lite topics",
    ),
}


class ReceiptExtras(Struct):
    """Additional fields of one message's receipt."""

    #: For a delayed message (docs/formats/grpc-api.md, section 6.3).
    recall_handle: str = ""
    #: Called once after the append; returns the transaction id (docs/formats/grpc-api.md, section
    #: 6.4).
    on_stored: Callable[[AppendResult], str] | None = None
    #: Result of `on_stored`.
    transaction_id: str = ""

    def receipt(self, message_id: bytes, result: AppendResult) -> bytes:
        """Return the encoded entry of the answer."""
        return field(
            b"\x12",
            b"".join(
                (
                    ANSWER_OK,
                    field(b"\x12", message_id),
                    field(b"\x1a", self.transaction_id.encode() or message_id),
                    b"\x20" + varint(result.queue_offset),
                    field(b"\x2a", self.recall_handle.encode()) if self.recall_handle else b"",
                )
            ),
        )


def failure_status(store: MessageStore, put: PutStatus) -> tuple[int, str]:
    """Return the code and the sentence for a message that was not stored."""
    known = FAILURES.get(put)
    if known is not None:
        return known
    if put is PutStatus.CREATE_MAPPED_FILE_FAILED and store.writer.out_of_buffers:
        return v2.TOO_MANY_REQUESTS, f"[REJECTREQUEST] {store.writer.allocation_failure}"
    # Also on a full disk: with INTERNAL_SERVER_ERROR every official client tries another group, and
    # reports this sentence if there is none. TOO_MANY_REQUESTS would not have that effect on all.
    reason = store.refusal
    if put is PutStatus.CREATE_MAPPED_FILE_FAILED:
        reason = reason or f"the disk is full: {store.writer.allocation_failure}"
    return v2.INTERNAL_SERVER_ERROR, reason or "the store does not accept messages"


def cause_of(code: int, sentence: str) -> str:
    """Return a metric's label for a refusal: the guard in brackets, or the name of the code."""
    guard = sentence[1:].partition("]")[0] if sentence.startswith("[") else ""
    return (guard or code_name(code)).lower()


def failed_answer(code: int, sentence: str) -> bytes:
    """Return an answer that fails as a whole."""
    return field(b"\x0a", status(code, sentence))


def refused_answer(error: WireError) -> bytes:
    """Return an answer that fails as a whole with `error`."""
    return failed_answer(error.code, error.message)


def answer_to(
    store: MessageStore,
    ids: Sequence[bytes],
    results: Sequence[AppendResult],
    extras: Sequence[ReceiptExtras | None] | None,
) -> bytes:
    """Return the answer for appended messages; `extras` is parallel to `ids`, or None."""
    parts = [ANSWER_OK]
    codes = set()
    for index, (message_id, result) in enumerate(zip(ids, results, strict=True)):
        if result.status is _PUT_OK:
            extra = extras[index] if extras is not None else None
            if extra is None:
                parts += receipt(message_id, result.queue_offset)
            else:
                parts.append(extra.receipt(message_id, result))
            continue
        code, sentence = failure_status(store, result.status)
        codes.add((code, sentence))
        entry = field(b"\x0a", status(code, sentence)) + field(b"\x12", message_id)
        parts.append(field(b"\x12", entry))
    if codes:
        all_failed = all(result.status is not _PUT_OK for result in results)
        if all_failed and len(codes) == 1:
            return failed_answer(*codes.pop())
        parts[0] = field(b"\x0a", status(v2.MULTIPLE_RESULTS, "the messages' results differ"))
    return b"".join(parts)
