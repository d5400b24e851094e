"""Epoch file `<store>/ha/epochs`: the epoch history of the log. Can be rebuilt from the log.

    cometmq-epochs1 <CRC-32 of the rest, 8 hexadecimal digits>
    <epoch> <start>
    ...

One line per epoch, ascending. A new version is written to a temporary file, flushed and renamed;
the previous version stays as `epochs.previous`. The temporary file lies there with its disk space
before it is needed, so that a replica can also lead on a full disk. It is durable before the first
byte of a new epoch is acknowledged. A missing or damaged file is rebuilt from the EPOCH_START
records (`epoch_scan.py`). See docs/formats/ha.md, section 6.5; `core/epochs.py` has the rules of
the history.
"""

import os
import zlib
from contextlib import suppress
from pathlib import Path
from typing import Final

from ...store.format.disk import Disk
from ...store.log.write_gate import suppress_no_space
from ..core.epochs import EpochHistory, EpochStart
from ..errors import DamagedStateError

EPOCHS_NAME: Final = "epochs"
PREVIOUS_NAME: Final = "epochs.previous"
_MAGIC: Final = b"cometmq-epochs1 "
_BLOCK_BYTES: Final = 4096
_HEADER_BYTES: Final = len(_MAGIC) + 8 + 1


def encode(history: EpochHistory) -> bytes:
    body = b"".join(b"%d %d\n" % (entry.epoch, entry.start) for entry in history.entries)
    return _MAGIC + b"%08x\n" % zlib.crc32(body) + body


def decode(data: bytes) -> EpochHistory | None:
    """Return the history, or None for damaged bytes."""
    header, body = data[:_HEADER_BYTES], data[_HEADER_BYTES:]
    if header != _MAGIC + b"%08x\n" % zlib.crc32(body):
        return None
    try:
        lines = [line.split() for line in body.splitlines()]
        return EpochHistory(EpochStart(int(epoch), int(start)) for epoch, start in lines)
    except ValueError:
        return None


def load(directory: Path, name: str = EPOCHS_NAME) -> EpochHistory | None:
    """Return the history, or None without a file. Raises DamagedStateError."""
    path = directory / name
    try:
        history = decode(path.read_bytes())
    except FileNotFoundError:
        return None
    if history is None:
        raise DamagedStateError(f"{path} is damaged: its checksum or its order is wrong.")
    return history


def save(directory: Path, history: EpochHistory, disk: Disk | None = None) -> None:
    """Write the history durably; an unchanged one is not written. Raises OSError."""
    disk = disk or Disk()
    path, previous = directory / EPOCHS_NAME, directory / PREVIOUS_NAME
    data = encode(history)
    with suppress(FileNotFoundError):
        if path.read_bytes() == data:
            return
    directory.mkdir(parents=True, exist_ok=True)
    temporary = str(directory / (EPOCHS_NAME + ".tmp"))
    descriptor = disk.open(temporary, os.O_WRONLY | os.O_CREAT)
    try:
        disk.pwrite(descriptor, data, 0)
        disk.truncate(descriptor, len(data))
        disk.fsync(descriptor)
    finally:
        os.close(descriptor)
    if path.exists():
        # A hard link to the previous version, so that `epochs` is never missing.
        with suppress(FileNotFoundError):
            disk.unlink(str(previous))
        os.link(path, previous)
    disk.replace(temporary, str(path))
    disk.sync_directory(str(directory))
    _reserve(temporary, len(data) // _BLOCK_BYTES, disk)


def _reserve(path: str, blocks: int, disk: Disk) -> None:
    """Create the next temporary file, with more space than it needs if there is some: the first
    version that is replaced leaves no older one whose space becomes free."""
    for more in (3, 2, 1):
        with suppress_no_space():
            descriptor = disk.open(path, os.O_WRONLY | os.O_CREAT)
            try:
                disk.fallocate(descriptor, (blocks + more) * _BLOCK_BYTES)
                return
            finally:
                os.close(descriptor)
