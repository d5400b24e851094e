"""An acceptor of the nameservers' register: what it promised and took is on its disk before it says so.

The file `cells` holds one record a register (format: `record_file.py`; a value is a serialized
`cometmq.v1.CellResponse`). It is truth: an acceptor that lost what it once said could let two decisions into
one register. So a file that is missing, torn or damaged makes it *fresh*: it does not vote until

    all other acceptors have told what they have, and it has taken that over, or
    so many have none at all that the register has never been used (a first start)

The file `acceptor` says who this acceptor is: a random number of 128 bits, made at the first start in a directory
and in every answer from then on, so that a proposer that reaches it under two addresses counts it once. It stays when
`cells` is lost: what counts twice is the danger, and votes wait for the others anyway.

Writing and fsync happen in one thread, off the event loop.
"""

import asyncio
import logging
import re
import secrets
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

from ..ha.core.cas_register import Ballot, Cell, Vote, accept, prepare
from ..proto import v1
from .meta_store import StoreUnavailableError
from .record_file import VALUE_BYTES_MAX, DamagedFileError, RecordFile

logger = logging.getLogger(__name__)

FILE = "cells"
ID_FILE = "acceptor"
_ID_KEY = "id"
_ID_BYTES = 16
_ID_FORM = re.compile(rb"[0-9a-f]{32}")
#: A register for each group that a nameserver can decide for, and one for who decides.
CELLS_MAX = 1_100
NAME_MAX = 300


class AcceptorRefusedError(Exception):
    """A request that no honest proposer makes; the text is a sentence."""


class AcceptorStore:
    """The acceptor of this nameserver."""

    def __init__(self, directory: Path) -> None:
        self.acceptor_id = ""  #: known once it is open
        self._id_path = directory / ID_FILE
        self._file = RecordFile(directory / FILE)
        self._cells: dict[str, Cell] = {}
        self._lock = asyncio.Lock()
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="cells")
        self.votes = False

    def open(self) -> None:
        """Read the files. Raises OSError."""
        self.acceptor_id = _identity(self._id_path)
        whole = True
        try:
            self._file.open()
            self._cells = {name: decode_cell(data) for name, data in self._file.values.items()}
        except (DamagedFileError, ValueError) as error:
            aside = self._file.set_aside()
            logger.error("cells.damaged kept_as=%s error=%s", aside, error)
            self._file = RecordFile(self._file.path)
            self._file.open()
            whole = False
        self.votes = whole and bool(self._cells) and not self._file.tail_was_cut
        logger.info(
            "cells.opened cells=%d votes=%s id=%s", len(self._cells), self.votes, self.acceptor_id
        )

    async def close(self) -> None:
        """Finish what is being written; no votes from now on."""
        self.votes = False
        await asyncio.get_running_loop().run_in_executor(None, self._thread.shutdown)
        self._file.close()

    @property
    def names(self) -> list[str]:
        """Registers that were ever used."""
        return sorted(self._cells)

    def peek(self, name: str) -> Cell:
        """What this acceptor has; it may be less than what the register holds."""
        return self._cells.get(name, Cell())

    async def prepare(self, name: str, ballot: Ballot) -> Vote:
        """Promise, durably. Raises StoreUnavailableError, CellRefusedError."""
        return await self._vote(name, lambda cell: prepare(cell, ballot))

    async def accept(self, name: str, ballot: Ballot, value: bytes) -> Vote:
        """Take a value, durably. Raises StoreUnavailableError, CellRefusedError."""
        if len(value) > VALUE_BYTES_MAX:
            raise AcceptorRefusedError(
                f"a value of {len(value)} bytes; the limit is {VALUE_BYTES_MAX}"
            )
        return await self._vote(name, lambda cell: accept(cell, ballot, value))

    async def take_over(self, cells: dict[str, Cell]) -> None:
        """What the others have, after this one's disk was lost; it votes from now on."""
        async with self._lock:
            await self._write(cells)
            self.votes = True

    async def _vote(self, name: str, decide: Callable[[Cell], Vote]) -> Vote:
        if not name or len(name) > NAME_MAX:
            raise AcceptorRefusedError(f"the name of a register has 1 to {NAME_MAX} characters")
        if not self.votes:
            raise StoreUnavailableError("this nameserver has lost its votes and asks the others")
        async with self._lock:
            old = self.peek(name)
            if not self.votes:
                raise StoreUnavailableError("this nameserver stops")
            if name not in self._cells and len(self._cells) >= CELLS_MAX:
                raise AcceptorRefusedError(f"there are {CELLS_MAX} registers already, the limit")
            vote = replace(decide(old), acceptor_id=self.acceptor_id)
            if vote.cell != old:
                await self._write({name: vote.cell})
            return vote

    async def _write(self, cells: dict[str, Cell]) -> None:
        changes = {name: encode_cell(cell) for name, cell in cells.items()}
        loop = asyncio.get_running_loop()
        try:
            await loop.run_in_executor(self._thread, self._file.put, changes)
        except OSError as error:
            logger.error("cells.not_written error=%s", error)
            raise StoreUnavailableError(f"its disk does not take it: {error}") from None
        self._cells.update(cells)


def _identity(path: Path) -> str:
    """Who the acceptor of this directory is; made, durably, when nothing says so. Raises OSError."""
    file = RecordFile(path)
    try:
        file.open()
    except DamagedFileError as error:
        aside = file.set_aside()
        logger.error("acceptor.damaged kept_as=%s error=%s", aside, error)
        file.open()
    try:
        found = file.values.get(_ID_KEY, b"")
        if not _ID_FORM.fullmatch(found):
            found = secrets.token_hex(_ID_BYTES).encode()
            file.put({_ID_KEY: found})
        return found.decode()
    finally:
        file.close()


def cell_message(cell: Cell, *, accepted: bool, acceptor_id: str = "") -> v1.CellResponse:
    """A cell as the wire and the disk carry it; who has it, only the wire."""
    return v1.CellResponse(
        accepted=accepted,
        promised=ballot_message(cell.promised),
        accepted_ballot=ballot_message(cell.accepted),
        value=cell.value,
        acceptor_id=acceptor_id,
    )


def cell_from(message: v1.CellResponse) -> Cell:
    """The cell in a message."""
    promised, accepted = message.promised, message.accepted_ballot
    return Cell(
        Ballot(promised.counter, promised.proposer),
        Ballot(accepted.counter, accepted.proposer),
        message.value,
    )


def ballot_message(ballot: Ballot) -> v1.Ballot:
    """A ballot as the wire carries it."""
    return v1.Ballot(counter=ballot.counter, proposer=ballot.proposer)


def encode_cell(cell: Cell) -> bytes:
    """A cell as the file keeps it."""
    data: bytes = cell_message(cell, accepted=True).SerializeToString(deterministic=True)
    return data


def decode_cell(data: bytes) -> Cell:
    """The cell in a record. Raises ValueError."""
    try:
        cell = cell_from(v1.CellResponse.FromString(data))
        cell.validate()
    except Exception as error:
        raise ValueError(f"no cell: {error}") from None
    return cell
