"""HTTP/2 by hand, for what no gRPC client would send. Writes frames, and reads them without
headers.

Just enough of RFC 9113 and RFC 7541: literal header fields without indexing, no Huffman coding;
what the server's headers say is not decoded, tests look at frames, their flags and the data in
them.
"""

import asyncio
import struct
from dataclasses import dataclass

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
DATA, HEADERS, RST_STREAM, SETTINGS, PING, GOAWAY, WINDOW_UPDATE, CONTINUATION = (
    *(0, 1, 3, 4, 6, 7),
    *(8, 9),
)
INITIAL_WINDOW_SIZE = 4
END_STREAM, ACK, END_HEADERS = 0x1, 0x1, 0x4


@dataclass
class Frame:
    """One frame that the server sent."""

    kind: int
    flags: int
    stream: int
    body: bytes

    @property
    def ends(self) -> bool:
        """It is the last of its stream."""
        return self.kind == RST_STREAM or bool(
            self.kind in (DATA, HEADERS) and self.flags & END_STREAM
        )


def frame(kind: int, flags: int, stream: int, body: bytes) -> bytes:
    return struct.pack(">I", len(body))[1:] + struct.pack(">BBI", kind, flags, stream) + body


def message(body: bytes, flag: int = 0, length: int | None = None) -> bytes:
    """A gRPC message with its five bytes; `length` may lie."""
    return struct.pack(">BI", flag, len(body) if length is None else length) + body


def _field(name: str, value: str) -> bytes:
    out = b"\x00"
    for text in (name.encode(), value.encode()):
        assert len(text) < 127
        out += bytes([len(text)]) + text
    return out


def headers(path: str, **replace: str) -> bytes:
    """A header block of a gRPC call; `content_type="x"` replaces or adds a field."""
    fields = {
        ":method": "POST",
        ":scheme": "http",
        ":path": path,
        ":authority": "test",
        "te": "trailers",
        "content-type": "application/grpc",
    }
    fields |= {name.replace("_", "-"): value for name, value in replace.items()}
    return b"".join(_field(name, value) for name, value in fields.items())


class RawConnection:
    """A socket that has done the handshake."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer
        self.stream_window = 65_535  # the server's SETTINGS_INITIAL_WINDOW_SIZE
        self._kept: list[Frame] = []  # of other streams than the one that was asked for

    @classmethod
    async def greet(cls, port: int) -> "RawConnection":
        """Connect and send the preface, without waiting for the server's."""
        connection = cls(*await asyncio.open_connection("127.0.0.1", port))
        connection.write(PREFACE + frame(SETTINGS, 0, 0, b""))
        return connection

    @classmethod
    async def open(cls, port: int) -> "RawConnection":
        connection = await cls.greet(port)
        # Some limits hold only after the client has acknowledged the server's settings.
        while (got := await asyncio.wait_for(connection.read(), 60)) is not None:
            if got.kind == SETTINGS and not got.flags & ACK:
                for setting, value in struct.iter_unpack(">HI", got.body):
                    if setting == INITIAL_WINDOW_SIZE:
                        connection.stream_window = value
                break
        return connection

    def write(self, data: bytes) -> None:
        if not self.writer.transport.is_closing():
            self.writer.write(data)

    def start(self, stream: int, path: str, **replace: str) -> None:
        block = headers(path, **replace)
        parts = [block[at : at + 16_384] for at in range(0, len(block), 16_384)]
        for number, part in enumerate(parts):
            last = END_HEADERS if number == len(parts) - 1 else 0
            self.write(frame(CONTINUATION if number else HEADERS, last, stream, part))

    def data(self, stream: int, body: bytes, end: bool = True) -> None:
        self.write(frame(DATA, END_STREAM if end else 0, stream, body))

    async def read(self) -> Frame | None:
        """The next frame, settings answered; None when the server has closed."""
        try:
            head = await self.reader.readexactly(9)
            body = await self.reader.readexactly(int.from_bytes(head[:3], "big"))
        except (asyncio.IncompleteReadError, ConnectionError):
            return None
        kind, flags, stream = struct.unpack(">BBI", head[3:])
        if kind == SETTINGS and not flags & ACK:
            self.write(frame(SETTINGS, ACK, 0, b""))
        if kind == PING and not flags & ACK:
            self.write(frame(PING, ACK, 0, body))
        return Frame(kind, flags, stream, body)

    async def until_end(self, stream: int) -> list[Frame]:
        """The frames of this stream up to its end; what there was when the connection closed."""
        found = [kept for kept in self._kept if kept.stream == stream]
        self._kept = [kept for kept in self._kept if kept.stream != stream]
        while not (found and found[-1].ends):
            got = await asyncio.wait_for(self.read(), 60)
            if got is None:
                break
            (found if got.stream == stream else self._kept).append(got)
        return found

    async def data_of(self, stream: int, size: int) -> bytes:
        """So many bytes of this stream's data."""
        data = b""
        while len(data) < size:
            got = await asyncio.wait_for(self.read(), 60)
            assert got is not None, "the server closed the connection"
            if got.stream == stream and got.kind == DATA:
                data += got.body
        return data

    async def echo(self, stream: int) -> None:
        """Prove that the connection lives: one good call."""
        self.start(stream, "/test.Conformance/Echo")
        self.data(stream, message(b"alive"))
        frames = await self.until_end(stream)
        assert b"".join(f.body for f in frames if f.kind == DATA) == message(b"alive")

    async def closed(self) -> bool:
        """The server has closed the connection, after whatever it still had to say."""
        while await asyncio.wait_for(self.read(), 60) is not None:
            pass
        return True

    def abort(self) -> None:
        self.writer.transport.abort()
