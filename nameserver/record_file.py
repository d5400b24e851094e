"""Record file: a small append-only file of keyed values that survives a crash at any moment.

The newest record of a key is its value. Used for the groups' states and for the acceptor's
promises: a few hundred bytes per decision, a few decisions per failover.

offset  size  field      meaning
     0    16  header     b"cometmq-records1"
then, for each record:
     0     4  magic      b"REC1"
     4     4  key size   big endian
     8     4  value size big endian
    12     4  crc        CRC-32 over sizes, key and value, big endian
    16     k  key        UTF-8
16+k     v  value

A record counts once all of it is on disk (`fdatasync`). An incomplete record at the end of the file
is an interrupted write that was never acknowledged: it is cut, and `tail_was_cut` is set. A damaged
record followed by whole ones has another cause: DamagedFileError. At every opening, and after
growth, the file is rewritten with the newest records only (a temporary file, fsync, rename, fsync
of the directory).
"""

import os
import struct
import zlib
from pathlib import Path

_HEADER = b"cometmq-records1"
_MAGIC = b"REC1"
_SIZES = struct.Struct(">II")
_CRC = struct.Struct(">I")
_PREFIX_BYTES = len(_MAGIC) + _SIZES.size + _CRC.size
#: A state has at most 16 members of some hundred bytes: larger values are invalid.
VALUE_BYTES_MAX = 1 << 20
#: The file is rewritten when it is larger than this and mostly history.
COMPACT_BYTES = 1 << 20


class DamagedFileError(Exception):
    """The middle of the file is damaged; the text has the position."""


def encode_record(key: str, value: bytes) -> bytes:
    """Return the bytes of one record."""
    if len(value) > VALUE_BYTES_MAX:
        raise ValueError(f"a value of {len(value)} bytes; the limit is {VALUE_BYTES_MAX}")
    name = key.encode()
    sizes = _SIZES.pack(len(name), len(value))
    crc = zlib.crc32(value, zlib.crc32(name, zlib.crc32(sizes)))
    return _MAGIC + sizes + _CRC.pack(crc) + name + value


def decode_record(data: bytes, at: int) -> tuple[str, bytes, int] | None:
    """Return key, value and end of the record at `at`, or None without a whole record."""
    if data[at : at + 4] != _MAGIC or at + _PREFIX_BYTES > len(data):
        return None
    sizes = data[at + 4 : at + 12]
    key_size, value_size = _SIZES.unpack(sizes)
    (crc,) = _CRC.unpack_from(data, at + 12)
    start = at + _PREFIX_BYTES
    end = start + key_size + value_size
    if end > len(data):
        return None
    name, value = data[start : start + key_size], data[start + key_size : end]
    if zlib.crc32(value, zlib.crc32(name, zlib.crc32(sizes))) != crc:
        return None
    try:
        return name.decode(), value, end
    except UnicodeDecodeError:
        return None


def scan(data: bytes) -> tuple[dict[str, bytes], int]:
    """Return the newest value of each key and the end of the last whole record. Raises
    DamagedFileError."""
    if not data.startswith(_HEADER):
        if _HEADER.startswith(data) or not data.strip(b"\0"):
            return {}, 0  # a crash between its creation and its first write
        raise DamagedFileError("the header of the file is wrong")
    values: dict[str, bytes] = {}
    at = len(_HEADER)
    while (record := decode_record(data, at)) is not None:
        key, value, at = record
        values[key] = value
    following = data.find(_MAGIC, at + 1)
    while following >= 0:
        if decode_record(data, following) is not None:
            raise DamagedFileError(f"bytes {at} to {following} are not a record, but one follows")
        following = data.find(_MAGIC, following + 1)
    return values, at


class RecordFile:
    """The file at `path`. Synchronous: callers keep it off the event loop."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.values: dict[str, bytes] = {}
        self.existed = False
        self.tail_was_cut = False
        self._fd = -1
        self._size = 0
        self._whole = False  #: the content on disk is known to equal `values`

    def open(self) -> None:
        """Read, cut and compact the file. Raises DamagedFileError, OSError."""
        try:
            data = self.path.read_bytes()
        except FileNotFoundError:
            data = b""
        else:
            self.existed = True
        self.values, end = scan(data)
        self.tail_was_cut = end < len(data)
        self._rewrite(self.values)

    def set_aside(self) -> Path:
        """Rename a damaged file, so that a new one can be created."""
        for number in range(1, 1_000):
            aside = self.path.with_name(f"{self.path.name}.damaged-{number}")
            if not aside.exists():
                self.path.rename(aside)
                return aside
        raise OSError(
            f"there are 999 damaged copies of {self.path} already: examine and remove them"
        )

    def put(self, changes: dict[str, bytes]) -> None:
        """Store a value durably; after an OSError it counts neither in memory nor on disk."""
        if not self._whole or self._size > COMPACT_BYTES + 2 * sum(map(len, self.values.values())):
            # After a failed write the bytes behind the last whole record are unknown, and a failed
            # flush must never be repeated: write a new file.
            self._rewrite({**self.values, **changes})
            return
        data = b"".join(encode_record(key, value) for key, value in changes.items())
        self._whole = False
        _write_all(self._fd, data)
        os.fdatasync(self._fd)
        self._whole = True
        self._size += len(data)
        self.values.update(changes)

    def close(self) -> None:
        """Close the file."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def _rewrite(self, values: dict[str, bytes]) -> None:
        temporary = self.path.with_name(self.path.name + ".tmp")
        data = _HEADER + b"".join(encode_record(key, values[key]) for key in sorted(values))
        temporary.unlink(missing_ok=True)
        fd = os.open(
            temporary,
            os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC,
            0o600,
        )
        try:
            _write_all(fd, data)
            os.fsync(fd)
            temporary.replace(self.path)
            _sync_directory(self.path.parent)
        except BaseException as error:
            os.close(fd)
            if isinstance(error, OSError) and error.filename is None:
                error.filename = str(temporary)  # a start that fails names the disk
            raise
        self.close()
        self._fd, self._size, self._whole = fd, len(data), True
        self.values = dict(values)


def _write_all(fd: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view) :]


def _sync_directory(directory: Path) -> None:
    fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
