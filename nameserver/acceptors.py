"""Acceptors of the register for a proposer: this nameserver's own, and its peers' over gRPC.

An address may resolve to another acceptor later, or to this nameserver itself (containers that
returned with exchanged addresses). So every answer carries the acceptor's id, and counts once
whatever the address.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Protocol, TypeVar

import grpc
import grpc.aio
from google.protobuf.message import DecodeError
from msgspec import Struct

from ..ha.core.cas_register import Ballot, Identities, Vote
from ..ha.stream.redial import RedialedChannel
from ..nodes.node_links import NodeLinks
from ..proto import paths, v1
from .acceptor_store import AcceptorStore, acceptor_state_from, ballot_message
from .meta_store import StoreUnavailableError

logger = logging.getLogger(__name__)

OWN = "own"
#: Limit of logged pairs: two to four peers exceed it only if their directories are recreated often.
_REPORTED_MAX = 100


class RegisterNames(Struct, frozen=True):
    """The registers that an acceptor has records of."""

    acceptor_id: str
    registers: list[str]


class Acceptor(Protocol):
    """One vote. All calls raise StoreUnavailableError without an answer."""

    name: str

    async def prepare(self, register: str, ballot: Ballot) -> Vote: ...

    async def accept(self, register: str, ballot: Ballot, value: bytes) -> Vote: ...

    async def names(self) -> RegisterNames: ...

    async def peek(self, register: str) -> Vote:
        """Return its state without a promise; `ok`: it votes."""


class OwnAcceptor:
    """The acceptor of this nameserver."""

    def __init__(self, store: AcceptorStore) -> None:
        self.name = OWN
        self._store = store

    async def prepare(self, register: str, ballot: Ballot) -> Vote:
        return await self._store.prepare(register, ballot)

    async def accept(self, register: str, ballot: Ballot, value: bytes) -> Vote:
        return await self._store.accept(register, ballot, value)

    async def names(self) -> RegisterNames:
        return RegisterNames(self._store.acceptor_id, self._store.names)

    async def peek(self, register: str) -> Vote:
        return Vote(self._store.votes, self._store.peek(register), self._store.acceptor_id)


class PeerAcceptor:
    """The acceptor of another nameserver, by address."""

    def __init__(self, address: str, links: NodeLinks, timeout_s: float) -> None:
        self.name = address
        self._metadata = links.metadata(address)
        self._timeout_s = timeout_s
        self._channel = RedialedChannel(address, links)

    async def close(self) -> None:
        """Close the connection."""
        await self._channel.close()

    def resolve_again(self) -> None:
        """Resolve the address again: some address led to the wrong nameserver."""
        self._channel.redial()

    async def prepare(self, register: str, ballot: Ballot) -> Vote:
        request = v1.PrepareRequest(cell=register, ballot=ballot_message(ballot))
        return _vote(await self._call(paths.CELL_PREPARE, request))

    async def accept(self, register: str, ballot: Ballot, value: bytes) -> Vote:
        request = v1.AcceptRequest(cell=register, ballot=ballot_message(ballot), value=value)
        return _vote(await self._call(paths.CELL_ACCEPT, request))

    async def names(self) -> RegisterNames:
        answer = await self._call(paths.CELL_READ, v1.ReadCellRequest())
        return RegisterNames(answer.acceptor_id, list(answer.cells))

    async def peek(self, register: str) -> Vote:
        return _vote(await self._call(paths.CELL_READ, v1.ReadCellRequest(cell=register)))

    async def process_exited(self, request: v1.ProcessExitedRequest) -> None:
        """Report the exit of a broker. A failure is only logged: its lease then expires."""
        raw = request.SerializeToString()
        try:
            await self._channel.call(paths.PROCESS_EXITED, raw, self._metadata, self._timeout_s)
        except grpc.RpcError as error:
            logger.info("process.exit_not_reported peer=%s error=%s", self.name, error)

    async def _call(self, path: str, request: Any) -> v1.CellResponse:
        raw_request = request.SerializeToString()
        try:
            raw = await self._channel.call(path, raw_request, self._metadata, self._timeout_s)
            answer: v1.CellResponse = v1.CellResponse.FromString(raw)
        except (grpc.RpcError, DecodeError) as error:
            raise StoreUnavailableError(f"{self.name} does not answer: {error}") from None
        return answer


def _vote(answer: v1.CellResponse) -> Vote:
    return Vote(answer.accepted, acceptor_state_from(answer), answer.acceptor_id)


def _nothing() -> None:
    pass


class DuplicateReports:
    """Logs, once per pair, an address that led to an acceptor already counted."""

    def __init__(self) -> None:
        self._reported: set[tuple[str, str]] = set()
        #: Called when some address is wrong; which one is unknown.
        self.on_duplicate: Callable[[], None] = _nothing

    def report(self, address: str, acceptor_id: str) -> None:
        """Report an answer that did not count."""
        self.on_duplicate()
        if (address, acceptor_id) in self._reported or len(self._reported) >= _REPORTED_MAX:
            return
        self._reported.add((address, acceptor_id))
        logger.error("acceptor.duplicate address=%s id=%s", address, acceptor_id)


Answer = TypeVar("Answer", RegisterNames, Vote)


async def call_each_once(
    acceptors: Sequence[Acceptor],
    call: Callable[[Acceptor], Awaitable[Answer]],
    duplicates: DuplicateReports,
    own_id: str = "",
) -> list[Answer]:
    """Call every acceptor once and return one answer per acceptor.

    Unreachable acceptors are left out, and this nameserver's own (`own_id`) when only others are
    called.
    """
    answers = await asyncio.gather(*map(call, acceptors), return_exceptions=True)
    identities = Identities()
    identities.counts(OWN, own_id)
    counted: list[Answer] = []
    for acceptor, answer in zip(acceptors, answers, strict=True):
        if isinstance(answer, BaseException):
            continue
        if identities.counts(acceptor.name, answer.acceptor_id):
            counted.append(answer)
        else:
            duplicates.report(acceptor.name, answer.acceptor_id)
    return counted
