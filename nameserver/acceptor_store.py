"""Acceptor store: what this acceptor promised and accepted, durable before every answer.

The file `cells` holds one record per register (format: `record_file.py`; a value is a serialized
`cometmq.v1.CellResponse`). It is a source of truth: an acceptor that loses a promise could let two
decisions into one register. So a missing, torn or damaged file makes the acceptor *fresh*: it does
not vote until

    all other acceptors have returned their states and it has taken them over, or
    a majority of the acceptors, this one included, is empty, and no other acceptor that answers
    holds a register: none was ever used (a first start)

The file `acceptor` has the acceptor's id: 128 random bits, created at the first start in a
directory and part of every answer, so that a proposer that reaches it under two addresses counts it
once. The id stays when `cells` is lost: the danger is a double vote, and votes wait for the others
anyway.

Writes and fsync run in one thread, off the event loop.
"""

import asyncio
import logging
import re
import secrets
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from msgspec.structs import replace

from ..ha.core.cas_register import AcceptorState, Ballot, Vote, accept, prepare
from ..proto import v1
from .meta_store import StoreUnavailableError
from .record_file import VALUE_BYTES_MAX, DamagedFileError, RecordFile

logger = logging.getLogger(__name__)

FILE = "cells"
ID_FILE = "acceptor"
_ID_KEY = "id"
_ID_BYTES = 16
_ID_FORM = re.compile(rb"[0-9a-f]{32}")
#: One register for each group that a nameserver can host, and one for the active nameserver.
REGISTERS_MAX = 1_100
NAME_MAX = 300


class AcceptorRefusedError(Exception):
    """A request that a correct proposer never sends; the text is a sentence."""


class AcceptorStore:
    """The acceptor of this nameserver."""

    def __init__(self, directory: Path) -> None:
        self.acceptor_id = ""  #: known once it is open
        self._id_path = directory / ID_FILE
        self._file = RecordFile(directory / FILE)
        self._states: dict[str, AcceptorState] = {}
        self._lock = asyncio.Lock()
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="cells")
        self.votes = False

    def open(self) -> None:
        """Read the files. Raises OSError."""
        self.acceptor_id = _identity(self._id_path)
        whole = True
        try:
            self._file.open()
            self._states = {
                name: decode_state_record(data) for name, data in self._file.values.items()
            }
        except (DamagedFileError, ValueError) as error:
            aside = self._file.set_aside()
            logger.error("acceptor.damaged kept_as=%s error=%s", aside, error)
            self._file = RecordFile(self._file.path)
            self._file.open()
            whole = False
        self.votes = whole and bool(self._states) and not self._file.tail_was_cut
        logger.info(
            "acceptor.opened registers=%d votes=%s id=%s",
            len(self._states),
            self.votes,
            self.acceptor_id,
        )

    async def close(self) -> None:
        """Finish pending writes; no votes from now on."""
        self.votes = False
        await asyncio.get_running_loop().run_in_executor(None, self._thread.shutdown)
        self._file.close()

    @property
    def names(self) -> list[str]:
        """The registers that were ever used."""
        return sorted(self._states)

    def peek(self, name: str) -> AcceptorState:
        """Return this acceptor's state, which may be older than the register's value."""
        return self._states.get(name, AcceptorState())

    async def prepare(self, name: str, ballot: Ballot) -> Vote:
        """Promise durably. Raises StoreUnavailableError, AcceptorRefusedError."""
        return await self._vote(name, lambda state: prepare(state, ballot))

    async def accept(self, name: str, ballot: Ballot, value: bytes) -> Vote:
        """Accept a value durably. Raises StoreUnavailableError, AcceptorRefusedError."""
        if len(value) > VALUE_BYTES_MAX:
            raise AcceptorRefusedError(
                f"a value of {len(value)} bytes; the limit is {VALUE_BYTES_MAX}"
            )
        return await self._vote(name, lambda state: accept(state, ballot, value))

    async def take_over(self, states: dict[str, AcceptorState]) -> None:
        """Take over the states of the others after a lost disk; the acceptor votes from now on."""
        async with self._lock:
            await self._write(states)
            self.votes = True

    async def _vote(self, name: str, decide: Callable[[AcceptorState], Vote]) -> Vote:
        if not name or len(name) > NAME_MAX:
            raise AcceptorRefusedError(f"a register name must have 1 to {NAME_MAX} characters")
        if not self.votes:
            raise StoreUnavailableError(
                "this nameserver lost its acceptor state and recovers it from the others"
            )
        async with self._lock:
            old = self.peek(name)
            if not self.votes:
                raise StoreUnavailableError("this nameserver is stopping")
            if name not in self._states and len(self._states) >= REGISTERS_MAX:
                raise AcceptorRefusedError(
                    f"there are {REGISTERS_MAX} registers already, the limit"
                )
            vote = replace(decide(old), acceptor_id=self.acceptor_id)
            if vote.state != old:
                await self._write({name: vote.state})
            return vote

    async def _write(self, states: dict[str, AcceptorState]) -> None:
        changes = {name: encode_state_record(state) for name, state in states.items()}
        loop = asyncio.get_running_loop()
        try:
            await loop.run_in_executor(self._thread, self._file.put, changes)
        except OSError as error:
            logger.error("acceptor.not_written error=%s", error)
            raise StoreUnavailableError(
                f"the acceptor state could not be written: {error}"
            ) from None
        self._states.update(states)


def _identity(path: Path) -> str:
    """Return the acceptor id of this directory, created durably if missing. Raises OSError."""
    file = RecordFile(path)
    try:
        file.open()
    except DamagedFileError as error:
        aside = file.set_aside()
        logger.error("acceptor.id_damaged kept_as=%s error=%s", aside, error)
        file.open()
    try:
        identity = file.values.get(_ID_KEY, b"")
        if not _ID_FORM.fullmatch(identity):
            identity = secrets.token_hex(_ID_BYTES).encode()
            file.put({_ID_KEY: identity})
        return identity.decode()
    finally:
        file.close()


def acceptor_message(
    state: AcceptorState, *, accepted: bool, acceptor_id: str = ""
) -> v1.CellResponse:
    """Return the message of an acceptor state; the acceptor id is set only on the wire."""
    return v1.CellResponse(
        accepted=accepted,
        promised=ballot_message(state.promised),
        accepted_ballot=ballot_message(state.accepted),
        value=state.value,
        acceptor_id=acceptor_id,
    )


def acceptor_state_from(message: v1.CellResponse) -> AcceptorState:
    """Return the acceptor state of a message."""
    promised, accepted = message.promised, message.accepted_ballot
    return AcceptorState(
        Ballot(promised.counter, promised.proposer),
        Ballot(accepted.counter, accepted.proposer),
        message.value,
    )


def ballot_message(ballot: Ballot) -> v1.Ballot:
    """Return the message of a ballot."""
    return v1.Ballot(counter=ballot.counter, proposer=ballot.proposer)


def encode_state_record(state: AcceptorState) -> bytes:
    """Return the bytes of an acceptor state for the file."""
    data: bytes = acceptor_message(state, accepted=True).SerializeToString(deterministic=True)
    return data


def decode_state_record(data: bytes) -> AcceptorState:
    """Return the acceptor state of a record. Raises ValueError."""
    try:
        state = acceptor_state_from(v1.CellResponse.FromString(data))
        state.validate()
    except Exception as error:
        raise ValueError(f"invalid acceptor state: {error}") from None
    return state
