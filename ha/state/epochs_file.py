"""`<store>/ha/epochs`: which leader wrote which bytes of this log. Truth, but it can be made again from the log.

    cometmq-epochs1 <CRC-32 of the rest, 8 hexadecimal digits>
    <epoch> <start>
    ...

One line an epoch, ascending. A new version is written beside it, flushed and renamed; the version before stays as
`epochs.previous`. It is on the disk before the first byte of a new epoch is acknowledged. A missing or damaged
file is no misfortune: every epoch begins with an EPOCH_START record (`epoch_scan.py`).
(HA note, section 6.5; rules of the history: `core/epochs.py`)
"""

import os
import zlib
from contextlib import suppress
from pathlib import Path
from typing import Final

from ...store.format.disk import Disk
from ..core.epochs import EpochHistory, EpochStart
from ..errors import DamagedStateError

EPOCHS_NAME: Final = "epochs"
PREVIOUS_NAME: Final = "epochs.previous"
_MAGIC: Final = b"cometmq-epochs1 "
_HEADER_BYTES: Final = len(_MAGIC) + 8 + 1


def encode(history: EpochHistory) -> bytes:
    body = b"".join(b"%d %d\n" % (entry.epoch, entry.start) for entry in history.entries)
    return _MAGIC + b"%08x\n" % zlib.crc32(body) + body


def decode(data: bytes) -> EpochHistory | None:
    """The history, or None for bytes that are damaged."""
    header, body = data[:_HEADER_BYTES], data[_HEADER_BYTES:]
    if header != _MAGIC + b"%08x\n" % zlib.crc32(body):
        return None
    try:
        lines = [line.split() for line in body.splitlines()]
        return EpochHistory(EpochStart(int(epoch), int(start)) for epoch, start in lines)
    except ValueError:
        return None


def load(directory: Path, name: str = EPOCHS_NAME) -> EpochHistory | None:
    """The history; None when there is no file. Raises DamagedStateError."""
    path = directory / name
    try:
        history = decode(path.read_bytes())
    except FileNotFoundError:
        return None
    if history is None:
        raise DamagedStateError(f"{path} is damaged: its checksum or its order is wrong.")
    return history


def save(directory: Path, history: EpochHistory, disk: Disk | None = None) -> None:
    """Durable on return; nothing is written when it is there already. Raises OSError."""
    disk = disk or Disk()
    path, previous = directory / EPOCHS_NAME, directory / PREVIOUS_NAME
    data = encode(history)
    with suppress(FileNotFoundError):
        if path.read_bytes() == data:
            return
    directory.mkdir(parents=True, exist_ok=True)
    temporary = directory / (EPOCHS_NAME + ".tmp")
    descriptor = disk.open(str(temporary), os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    try:
        disk.pwrite(descriptor, data, 0)
        disk.fsync(descriptor)
    finally:
        os.close(descriptor)
    if path.exists():
        # A second name for the version before: `epochs` itself is never missing.
        with suppress(FileNotFoundError):
            disk.unlink(str(previous))
        os.link(path, previous)
    disk.replace(str(temporary), str(path))
    disk.sync_directory(str(directory))
