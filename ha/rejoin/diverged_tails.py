"""Archived tails for other components: the list in a replica's status, and the replay.

Replay sends the messages again like a producer (`role/controller_link.py` reports the cuts):

    replay = Replay(directory, send)            # `send`: one SendMessage to the group's leader
    response = await replay.run(request)        # v1.ReplayTailRequest -> v1.ControlResponse

If several replicas archived the same bytes, the request names the tails that another replica sent
(`diverged_key.py` compares them); these are marked, not sent. Order is kept only within a message
group, and duplicates are possible: the last answers before a crash may be unknown, so nothing in a
tail is left out. Progress is durable: an interrupted replay continues (docs/formats/ha.md, R7).
"""

import asyncio
import itertools
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from dataclasses import replace
from pathlib import Path
from typing import Final

from ...nodes.node_links import NodeLinks
from ...proto import paths, v1, v2
from ...proto.channels import cancel_requests
from ...store.format.disk import Disk
from . import archive
from .archive import DivergedTail
from .diverged_messages import Resend, messages

__all__ = ["Replay", "Send", "list_tails", "send_to"]

logger = logging.getLogger(__name__)

#: Sends one message to the group's leader like a producer. Raises what the call raises.
Send = Callable[[v2.SendMessageRequest], Awaitable[v2.SendMessageResponse]]
#: Concurrent sends; progress is saved after each round, which bounds repeats after a crash.
_ROUND: Final = 64
#: More refused messages than this stop a replay: the cause is the group, not the messages.
_UNSENT_MAX: Final = 1000
_SEND_TIMEOUT_S: Final = 10.0
#: Client metadata (docs/formats/grpc-api.md, section 2).
_CLIENT: Final = (
    ("x-mq-client-id", "cometmq-replay-tail"),
    ("x-mq-language", "PYTHON"),
    ("x-mq-protocol", "v2"),
)


def list_tails(directory: Path) -> list[v1.ArchivedTail]:
    """Return every archived tail as in a replica's status; `directory` is `<store>/ha`."""
    return [
        v1.ArchivedTail(
            file_id=tail.file_id,
            start=tail.start,
            end=tail.end,
            messages=tail.messages,
            answered_ok=tail.answered_ok,
            epoch=tail.epoch,
            cut_at_ms=tail.cut_at_ms,
            replayed=tail.replayed,
            crc32=tail.crc32,
        )
        for tail in archive.load_tails(directory)
    ]


class Replay:
    """Sends archived tails again; one run at a time."""

    def __init__(self, directory: Path, send: Send, disk: Disk | None = None) -> None:
        self._directory = directory
        self._send = send
        self._disk = disk or Disk()
        self._lock = asyncio.Lock()

    async def run(self, request: v1.ReplayTailRequest) -> v1.ControlResponse:
        """Replay one tail, or all open ones; `messages` counts the sends (or those of a dry
        run)."""
        async with self._lock:
            wanted = [
                tail
                for tail in archive.load_tails(self._directory)
                if _is_wanted(tail, request.file_id)
            ]
            if request.file_id and not wanted:
                return v1.ControlResponse(
                    code=v2.NOT_FOUND, message=f"There is no tail {request.file_id}."
                )
            response = v1.ControlResponse(code=v2.OK)
            for tail in wanted:
                if tail.file_id in request.sent_elsewhere:
                    self._mark(tail, response, dry_run=request.dry_run)
                elif request.dry_run:
                    count = sum(1 for _ in self._messages(tail))
                    response.steps.append(f"would send {count} messages of {tail.file_id}")
                    response.messages += count
                elif not await self._replay(tail, response):
                    break
            if not wanted:
                response.steps.append("there is nothing to replay")
            return response

    def _mark(self, tail: DivergedTail, response: v1.ControlResponse, *, dry_run: bool) -> None:
        if not dry_run:
            archive.save(self._directory, replace(tail, replayed=True), self._disk)
            logger.warning("ha.tail.sent_elsewhere file=%s", tail.file_id)
        response.steps.append(
            f"{tail.file_id} holds the same bytes as the tail of another replica, which "
            "sends them: not sent twice"
        )

    def _messages(self, tail: DivergedTail) -> Iterable[Resend]:
        path = archive.folder_of(self._directory) / tail.log_name
        again = set(tail.unsent)
        return (
            each
            for each in messages(path, tail.start, tail.file_id)
            if each.offset >= tail.replayed_to or each.offset in again
        )

    async def _replay(self, tail: DivergedTail, response: v1.ControlResponse) -> bool:
        """Replay one tail; returns whether to continue with the next."""
        sent, refused = 0, list[int]()
        progress = tail
        pending = iter(self._messages(tail))
        while batch := list(itertools.islice(pending, _ROUND)):
            outcomes = [each async for each in self._send_round(batch)]
            failures = [why for _, why in outcomes if why]
            refused += [each.offset for each, why in outcomes if why]
            sent += len(batch) - len(failures)
            reached = max(progress.replayed_to, batch[-1].end)
            progress = replace(progress, replayed_to=reached, unsent=tuple(refused))
            archive.save(self._directory, progress, self._disk)
            if len(failures) == len(batch) or len(refused) > _UNSENT_MAX:
                response.code, response.message = (
                    v2.INTERNAL_ERROR,
                    f"{tail.file_id}: {failures[0]}",
                )
                break
        response.messages += sent
        done = response.code == v2.OK and not refused
        if done:
            archive.save(self._directory, replace(progress, replayed=True), self._disk)
        elif response.code == v2.OK:
            response.code = v2.INTERNAL_ERROR
            response.message = (
                f"{len(refused)} messages of {tail.file_id} were refused; run it again."
            )
        response.steps.append(
            f"sent {sent} messages of {tail.file_id}" + f", {len(refused)} refused" * bool(refused)
        )
        logger.warning(
            "ha.tail.replayed file=%s messages=%d refused=%d", tail.file_id, sent, len(refused)
        )
        return response.code == v2.OK

    async def _send_round(self, batch: list[Resend]) -> AsyncIterator[tuple[Resend, str]]:
        """Send a batch; yields each message with its refusal or "". Message groups keep their
        order."""
        free = [each for each in batch if not each.message.system_properties.message_group]
        results = await asyncio.gather(*(self._send_one(each) for each in free))
        for pair in zip(free, results, strict=True):
            yield pair
        for each in batch:
            if each.message.system_properties.message_group:
                yield each, await self._send_one(each)

    async def _send_one(self, each: Resend) -> str:
        asked_to_end = cancel_requests()
        try:
            answer = await self._send(v2.SendMessageRequest(messages=[each.message]))
        except Exception as error:
            if cancel_requests() > asked_to_end:
                raise asyncio.CancelledError from None
            # In every case the message stays in the archive and in `unsent`.
            logger.warning("ha.tail.not_sent offset=%d error=%r", each.offset, error)
            return f"the message at {each.offset} could not be sent: {error}"
        if answer.status.code == v2.OK:
            return ""
        code = v2.Code.Name(answer.status.code)
        logger.warning(
            "ha.tail.refused offset=%d code=%s reason=%s", each.offset, code, answer.status.message
        )
        return f"the message at {each.offset} was refused: {code} {answer.status.message}"


def _is_wanted(tail: DivergedTail, file_id: str) -> bool:
    return tail.file_id == file_id if file_id else not tail.replayed


def send_to(address: Callable[[], str], links: NodeLinks) -> Send:
    """Return a `Send` to the current `address` (host:port of a client port; "": unknown)."""

    async def send(request: v2.SendMessageRequest) -> v2.SendMessageResponse:
        target = address()
        if not target:
            raise ConnectionError("the group has no leader")
        async with links.channel(target) as channel:
            call = channel.unary_unary(
                paths.SEND_MESSAGE,
                request_serializer=v2.SendMessageRequest.SerializeToString,
                response_deserializer=v2.SendMessageResponse.FromString,
            )
            answer: v2.SendMessageResponse = await call(
                request, timeout=_SEND_TIMEOUT_S, metadata=_CLIENT
            )
            return answer

    return send
