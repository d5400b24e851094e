"""What every consumer says to a broker about messages: receive, acknowledge, hide, give up.

Promises: each function makes one request of the protocol, repeated where repeating is harmless; an
acknowledgement goes where the message came from, and to the access point when that is gone, which
forwards it (gRPC API, sections 5.6-5.9). What the server says about single messages is said of them. A
handle that is dead when an acknowledgement is repeated, because the answer to the first was lost, was
acknowledged by the first.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from typing import TYPE_CHECKING

from ..proto import paths, v2
from ..proto.errors import is_retriable
from .errors import CometError, OutcomeUnknown, RequestRefused, refused
from .message import Message, read_message
from .retrying import RetryableError
from .session import Tries

if TYPE_CHECKING:
    from .filters import Filter
    from .routes import Queue
    from .session import Session
    from .transport.addresses import Target

ANSWER_MARGIN_S = 3.0
"""Beyond the polling time: what the answer has to come in."""
POLL_LEAST_S = 5.0
"""Apache's proxy refuses a poll that would have to end earlier."""
_EMPTY = frozenset((v2.MESSAGE_NOT_FOUND,))
_UNTOLD = v2.Status(code=v2.INTERNAL_ERROR, message="the answer says nothing of this message")
Refusals = list[tuple[Message, RequestRefused]]


async def receive(
    session: Session,
    queue: Queue,
    wanted: Filter,
    *,
    count: int,
    wait_s: float,
    invisible_s: float | None,
    attempt_id: str = "",
) -> list[Message]:
    """One long poll; without `invisible_s` the broker keeps the messages hidden while we live.

    Raises Again (try elsewhere, or later) or RequestRefused.
    """
    request = v2.ReceiveMessageRequest(
        group=session.resource(session.group),
        message_queue=queue.proto,
        filter_expression=wanted.proto(),
        batch_size=count,
        auto_renew=invisible_s is None,
    )
    request.long_polling_timeout.FromMilliseconds(int(wait_s * 1000))
    if invisible_s is not None:
        request.invisible_duration.FromMilliseconds(int(invisible_s * 1000))
    if attempt_id:
        request.attempt_id = attempt_id
    try:
        return await _poll(session, queue, request, wait_s)
    except RequestRefused as error:
        if error.code != v2.ILLEGAL_POLLING_TIME or wait_s >= POLL_LEAST_S:
            raise
        return await _poll(session, queue, request, POLL_LEAST_S)


async def _poll(
    session: Session, queue: Queue, request: v2.ReceiveMessageRequest, wait_s: float
) -> list[Message]:
    answers = await session.stream(
        queue.target,
        paths.RECEIVE_MESSAGE,
        request,
        v2.ReceiveMessageResponse,
        wait_s + ANSWER_MARGIN_S,
    )
    found, status = [], None
    for answer in answers:
        kind = answer.WhichOneof("content")
        if kind == "message":
            found.append(read_message(answer.message, queue.broker, queue.target))
        elif kind == "status":
            status = answer.status
    session.statistics.received += len(found)
    if not found and status is not None and status.code not in (v2.OK, *_EMPTY):
        error = refused(status.code, status.message)
        if is_retriable(status.code):
            raise RetryableError(error, maybe_done=False)
        raise error
    return found


async def acknowledge(session: Session, messages: Iterable[Message]) -> Refusals:
    """Be done with messages, one request for each topic and endpoint; those that were refused.

    An endpoint that cannot be reached is raised when all the others have been told.
    """
    together: dict[tuple[Target | None, str], list[Message]] = defaultdict(list)
    for message in messages:
        together[message.source, message.topic].append(message)
    refusals: Refusals = []
    failure: CometError | None = None
    for (target, topic), some in together.items():
        try:
            those = await _acknowledge(session, target, topic, some)
        except CometError as error:
            failure = error
            continue
        session.statistics.acknowledged += len(some) - len(those)
        session.statistics.refused_acks += len(those)
        refusals += those
    if failure is not None:
        raise failure
    return refusals


async def _acknowledge(
    session: Session, target: Target | None, topic: str, messages: list[Message]
) -> Refusals:
    request = v2.AckMessageRequest(
        group=session.resource(session.group), topic=session.resource(topic)
    )
    for message in messages:
        request.entries.add(message_id=message.message_id, receipt_handle=message.receipt_handle)
    tries = Tries()
    try:
        answer = await session.ask_until_done(
            *(target, paths.ACK_MESSAGE, request, v2.AckMessageResponse),
            (v2.MULTIPLE_RESULTS, v2.INVALID_RECEIPT_HANDLE),
            tries=tries,
        )
    except RequestRefused as error:
        return [(message, error) for message in messages]
    if answer.status.code == v2.OK:
        return []
    told = {entry.receipt_handle: entry.status for entry in answer.entries}
    if answer.status.code == v2.INVALID_RECEIPT_HANDLE:
        told = {message.receipt_handle: answer.status for message in messages} | told
    refusals: Refusals = []
    for message in messages:
        status = told.get(message.receipt_handle, _UNTOLD)
        dead = status.code == v2.INVALID_RECEIPT_HANDLE
        if status.code != v2.OK and not (dead and tries.maybe_done):
            refusals.append((message, refused(status.code, status.message)))
    return refusals


async def change_invisible(
    session: Session, message: Message, invisible_s: float, *, give_back: bool = False
) -> None:
    """Hide a message for so long from now; its handle is renewed.

    `give_back`: the caller is through with it, so a handle that died by a try is as good as an answer.
    """
    request = v2.ChangeInvisibleDurationRequest(
        group=session.resource(session.group),
        topic=session.resource(message.topic),
        receipt_handle=message.receipt_handle,
        message_id=message.message_id,
    )
    request.invisible_duration.FromMilliseconds(int(invisible_s * 1000))
    try:
        answer = await session.ask_until_done(
            message.source,
            paths.CHANGE_INVISIBLE_DURATION,
            request,
            v2.ChangeInvisibleDurationResponse,
        )
    except OutcomeUnknown as error:
        if give_back and _is_dead_handle(error):
            return
        raise
    message.receipt_handle = answer.receipt_handle or message.receipt_handle


async def give_up(session: Session, message: Message, attempts_max: int) -> None:
    """Move a message to the group's dead letters."""
    request = v2.ForwardMessageToDeadLetterQueueRequest(
        group=session.resource(session.group),
        topic=session.resource(message.topic),
        receipt_handle=message.receipt_handle,
        message_id=message.message_id,
        delivery_attempt=message.attempt,
        max_delivery_attempts=attempts_max,
    )
    try:
        await session.ask_until_done(
            message.source,
            paths.FORWARD_MESSAGE_TO_DEAD_LETTER_QUEUE,
            request,
            v2.ForwardMessageToDeadLetterQueueResponse,
        )
    except OutcomeUnknown as error:
        if not _is_dead_handle(error):
            raise


def _is_dead_handle(error: OutcomeUnknown) -> bool:
    """Refused in the end, because a try before it has used the handle up."""
    cause = error.__cause__
    return isinstance(cause, RequestRefused) and cause.code == v2.INVALID_RECEIPT_HANDLE


def describe(
    session: Session, settings: v2.Settings, subscriptions: dict[str, Filter], wait_s: float | None
) -> None:
    """What a consumer says about itself."""
    mine = settings.subscription
    mine.group.CopyFrom(session.resource(session.group))
    for topic, wanted in subscriptions.items():
        mine.subscriptions.add(topic=session.resource(topic), expression=wanted.proto())
    if wait_s is not None:
        mine.long_polling_timeout.FromMilliseconds(int(wait_s * 1000))
