"""Attacks on the HTTP port of the console. Each returns the statuses of its answers; 0: the
connection was closed without one."""

from __future__ import annotations

import asyncio
import contextlib
import re
import socket
from collections.abc import Awaitable, Callable, Iterable
from urllib.parse import urlencode

from google.protobuf.descriptor_pb2 import FileDescriptorProto, FileDescriptorSet

from cometmq.tests.console.served import Served

KIB, MIB = 1 << 10, 1 << 20
ANSWER_S = 30.0
#: More connections than the console accepts.
CROWD = 200
PAGES = ("/", "/topics", "/groups", "/messages", "/timers", "/clients", "/topics/neighbour")
_STATUS = re.compile(rb"HTTP/1\.1 (\d{3}) ")
_ORIGINS = (
    "http://[",
    "null",
    "http://other:1",
    "\xff",
    "http://a@b@c",
    "//",
    "http://127.0.0.1:1",
)
_COOKIES = ("=", ";" * 5_000, "a=" + "b" * 20_000, '"\x01"', "\xff\xfe", "token=x; " * 1_000)
_TOKENS = ("", "x", "\u00e9\U0001f600", "a" * 100_000, "\x00", "%")
_PATHS = (
    *("/static/../app.py", "/static/%2e%2e/app.py", "/static/..%2fapp.py", "/static//etc/passwd"),
    *("/static/....//....//etc/passwd", "/static/%00", "/static/" + "a" * 5_000, "/static/.", "//"),
    *("/topics/..%2f..%2fetc", "/topics/%00", "/topics/%ff%fe", "/topics/" + "t" * 50_000),
    *("/message/../../x", "/in/%2e%2e/", "/%", "/%zz", "/a?%", "/topics/%0d%0aX-Injected:1"),
    *("/groups/%3Cscript%3E", "/messages/" + "%2f" * 5_000, "/" + "a/" * 10_000),
)

Attack = Callable[[Served], Awaitable[list[int]]]
ATTACKS: list[tuple[Attack, frozenset[int]]] = []


def attack(*statuses: int) -> Callable[[Attack], Attack]:
    """Enter a coroutine function into the list, with the statuses it may get."""

    def enter(run: Attack) -> Attack:
        ATTACKS.append((run, frozenset(statuses)))
        return run

    return enter


def request(method: str, target: str, *headers: tuple[str, str], body: bytes = b"") -> bytes:
    """Encode a request with any content."""
    lines = [f"{method} {target} HTTP/1.1", "Host: 127.0.0.1"]
    lines += [f"{name}: {value}" for name, value in headers]
    if body:
        lines.append(f"Content-Length: {len(body)}")
    return "\r\n".join([*lines, "", ""]).encode("latin-1", "replace") + body


class Peer:
    """One connection that sends what it likes."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self.writer = reader, writer

    @classmethod
    async def dial(cls, served: Served) -> Peer:
        return cls(*await asyncio.open_connection("127.0.0.1", served.port))

    def write(self, data: bytes) -> None:
        if not self.writer.transport.is_closing():
            self.writer.write(data)

    async def push(self, data: bytes) -> bool:
        """Write when there is room; return whether the console still reads."""
        self.write(data)
        with contextlib.suppress(OSError, TimeoutError):
            await asyncio.wait_for(self.writer.drain(), 2.0)
        return not self.writer.transport.is_closing()

    async def status(self, within_s: float = ANSWER_S) -> int:
        """Return the status of the answer. Raises TimeoutError if there is none in time."""
        with contextlib.suppress(OSError, asyncio.IncompleteReadError):
            line = await asyncio.wait_for(self._reader.readuntil(b"\r\n"), within_s)
            found = _STATUS.match(line)
            return int(found[1]) if found else -1
        return 0

    def abort(self) -> None:
        self.writer.transport.abort()


async def ask(served: Served, data: bytes) -> int:
    """Send a request on a connection of its own; return the status."""
    peer = await Peer.dial(served)
    try:
        await peer.push(data)
        return await peer.status()
    finally:
        peer.abort()


async def ask_all(served: Served, requests: Iterable[bytes]) -> list[int]:
    """Send requests, ten at a time."""
    limit = asyncio.Semaphore(10)

    async def one(data: bytes) -> int:
        async with limit:
            return await ask(served, data)

    return await asyncio.gather(*map(one, requests))


async def crowd(served: Served, count: int = CROWD) -> list[Peer]:
    """Open connections."""
    return [await Peer.dial(served) for _ in range(count)]


@attack(200, 400, 404)
async def huge_queries(served: Served) -> list[int]:
    """Query strings of 60 KB, with many fields, with broken escapes, on every page."""
    queries = (
        "filter=" + "x" * 60_000,
        "&".join(f"f{n}={n}" for n in range(5_000)),
        "&" * 60_000,
        "page=" + "9" * 60_000,
        "page=-1&size=" + "1" * 4_000,
        "%" * 20_000,
        "filter=" + "%f0%9f%98%80" * 4_000,
        "begin=9999999999999999&end=-1&key=" + "%00" * 1_000,
    )
    return await ask_all(served, (request("GET", f"{p}?{q}") for p in PAGES for q in queries))


@attack(0, 400, 431)
async def header_floods(served: Served) -> list[int]:
    """Header blocks of 1 MiB, and one that does not end."""
    answers = await ask_all(
        served,
        (
            request("GET", "/", *((f"X-{n}", "y" * 100) for n in range(10_000))),
            request("GET", "/", ("X", "y" * MIB)),
            b"GET /" + b"a" * MIB + b" HTTP/1.1\r\n\r\n",
            b"G" * MIB,
        ),
    )
    peer = await Peer.dial(served)
    peer.write(b"GET / HTTP/1.1\r\nHost: x\r\n")
    for _ in range(1_000):
        if not await peer.push(b"X: " + b"y" * KIB + b"\r\n"):
            break
    answers.append(await peer.status())
    peer.abort()
    return answers


@attack(0)
async def slow_loris(served: Served) -> list[int]:
    """More connections than the console accepts, which send a request byte by byte."""
    peers = await crowd(served)
    text = request("GET", "/topics", ("X", "y" * 100))
    for at in range(20):
        for peer in peers:
            peer.write(text[at : at + 1])
        await asyncio.sleep(0.1)
    for peer in peers:
        peer.abort()
    return []


@attack(0)
async def unfinished_bodies(served: Served) -> list[int]:
    """Forms that announce 1 GB, or chunks without an end, and then send nothing."""
    heads = (
        request("POST", "/topics/new", ("Content-Length", str(1 << 30))),
        request("POST", "/topics/new", ("Transfer-Encoding", "chunked")) + b"10000\r\n",
    )
    peers = await crowd(served, 100)
    for number, peer in enumerate(peers):
        await peer.push(heads[number % 2] + b"x" * 60_000)
    await asyncio.sleep(1.0)
    for peer in peers:
        peer.abort()
    return []


@attack(0, 400, 413)
async def endless_bodies(served: Served) -> list[int]:
    """Forms of 64 MiB, with and without an announced length."""
    answers = []
    for number in range(8):
        peer = await Peer.dial(served)
        kind = ("Content-Length", str(64 * MIB)) if number % 2 else ("Transfer-Encoding", "chunked")
        peer.write(request("POST", "/topics/new", kind))
        chunk = b"x" * (64 * KIB)
        for _ in range(1_024):
            if not await peer.push(chunk if number % 2 else b"10000\r\n" + chunk + b"\r\n"):
                break
        answers.append(await peer.status())
        peer.abort()
    return answers


@attack(200, 307, 308, 400, 404, 405)
async def path_traversal(served: Served) -> list[int]:
    """Paths out of the folder of the files, with NUL, line ends, and 50 KB names."""
    for path in _PATHS:
        found = await asyncio.to_thread(served.ask, "GET", path)
        assert "root:" not in found.text and "import " not in found.text, path
        assert "x-injected" not in found.headers
    return await ask_all(
        served, (request(m, path) for path in _PATHS for m in ("GET", "HEAD", "POST"))
    )


@attack(400, 403, 413)
async def form_floods(served: Served) -> list[int]:
    """Forms with 10,000 fields, of 2 MiB, malformed, and of other content types."""
    bodies = (
        "&".join(f"a{n}=b" for n in range(10_000)).encode(),
        b"name=" + b"x" * (2 * MIB),
        b"%ff=%fe&" * 100,
        b"&" * 500_000,
        b"=" * 100_000,
        b'{"name":' * 1_000,
        b"--b\r\nContent-Disposition: form-data; name=a\r\n\r\nx\r\n" * 1_000,
    )
    kinds = (
        "application/x-www-form-urlencoded",
        "multipart/form-data; boundary=b",
        "a/" + "b" * 500,
    )
    return await ask_all(
        served,
        (
            request("POST", path, ("Content-Type", kind), body=body)
            for path in ("/topics/new", "/groups/new", "/message/copy")
            for kind in kinds
            for body in bodies
        ),
    )


def _upload(token: str, data: bytes) -> bytes:
    fields = (("topic", "neighbour"), ("queue", "0"), ("offset", "0"), ("token", token))
    part = "--b\r\nContent-Disposition: form-data; name="
    text = "".join(f'{part}"{name}"\r\n\r\n{value}\r\n' for name, value in fields)
    head = f'{text}{part}"file"; filename="x.desc"\r\n\r\n'
    return head.encode() + data + b"\r\n--b--\r\n"


def _sets() -> Iterable[bytes]:
    """Yield descriptor sets that would take much memory or time."""
    wide = FileDescriptorProto(name="wide.proto", package="p" * 500, syntax="proto3")
    wide.message_type.add(name="M")
    values = wide.enum_type.add(name="E")
    for n in range(38_000):
        values.value.add(name=f"v{n:x}", number=n)
    deep = FileDescriptorProto(name="deep.proto", package="p")
    inner = deep.message_type.add(name="N" * 8_000)
    for _ in range(60):
        inner = inner.nested_type.add(name="N" * 8_000)
    for n in range(1_000):
        inner.nested_type.add(name=f"a{n:x}")
    calls = FileDescriptorProto(name="calls.proto")
    calls.message_type.add(name="M")
    service = calls.service.add(name="S" * 200_000)
    for n in range(15_000):
        service.method.add(name=f"m{n:x}", input_type=".M", output_type=".M")
    chain = [FileDescriptorProto(name=f"{n}", dependency=[f"{n + 1}"]) for n in range(9_000)]
    chain[0].message_type.add(name="M")
    for files in ([wide], [deep], [calls], chain):
        yield FileDescriptorSet(file=files).SerializeToString()
    yield b"\x0a\x00" * (MIB // 4 - 1)
    yield b"\x0a\x80\x80\x80\x80\x04"
    yield b"x" * (2 * MIB)


@attack(303, 400, 403, 404, 413)  # 404: the place has no message
async def hostile_descriptor_sets(served: Served) -> list[int]:
    """Uploads with huge names, 9,000 imports, 38,000 values, and malformed forms."""
    token = await asyncio.to_thread(served.token)
    kind = ("Content-Type", "multipart/form-data; boundary=b")
    requests = [
        request("POST", "/message/types", kind, body=_upload(token, data))
        for data in _sets()
        for _ in range(4)
    ]
    forms = (
        b"--b\r\nContent-Disposition: form-data; name=a\r\n\r\nx\r\n" * 20_000,
        b"\r\n--b" * 200_000,
        b"--b\r\n" + b"A: b\r\n" * 100_000 + b"\r\n--b--",
        _upload("x", b""),
        _upload(token, b"").replace(b"x.desc", b"\xff" * 1_000),
        _upload(token, b"").replace(b"x.desc", b"y" * 100_000),
    )
    requests += [request("POST", "/message/types", kind, body=one) for one in forms]
    boundaries = ("", "; boundary=", "; boundary=" + "b" * 10_000, "; boundary*=utf-8''%ff")
    requests += [
        request("POST", "/message/types", ("Content-Type", f"multipart/form-data{one}"), body=b"x")
        for one in boundaries
    ]
    return await ask_all(served, requests)


@attack(200, 303, 400, 403, 404, 405)
async def foreign_forms(served: Served) -> list[int]:
    """Changes with tokens, origins and cookies that are missing, foreign or malformed."""
    token = await asyncio.to_thread(served.token)

    def form(given: str) -> bytes:
        return urlencode({"token": given, "name": "foreign", "type": "normal"}).encode()

    foreign = [
        request("POST", "/topics/new", ("Origin", origin), body=form(token)) for origin in _ORIGINS
    ]
    foreign += [
        request("POST", "/topics/new", ("Sec-Fetch-Site", site), body=form(token))
        for site in ("cross-site", "none", "\xff", "a" * 10_000)
    ]
    foreign += [request("POST", "/topics/new", body=form(given)) for given in _TOKENS]
    assert set(await ask_all(served, foreign)) == {403}
    assert (await asyncio.to_thread(served.ask, "GET", "/topics/foreign")).status == 404
    return await ask_all(served, (request("GET", "/", ("Cookie", one)) for one in _COOKIES))


@attack(0, 200, 503)
async def open_streams(served: Served) -> list[int]:
    """More event streams than the console serves, left open and not read."""
    answers, opened = [], []
    for number in range(CROWD):
        peer = socket.socket()
        peer.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4_096)
        peer.setblocking(False)
        opened.append(peer)
        loop = asyncio.get_running_loop()
        await loop.sock_connect(peer, ("127.0.0.1", served.port))
        await loop.sock_sendall(peer, request("GET", "/live"))
        if number % 20 == 0:
            try:
                line = await asyncio.wait_for(loop.sock_recv(peer, 64), ANSWER_S)
            except ConnectionError:
                line = b""
            found = _STATUS.match(line)
            answers.append(int(found[1]) if found else 0)
    await asyncio.sleep(2.0)
    for peer in opened:
        peer.close()
    return answers


@attack(0, 503)
async def slow_readers(served: Served) -> list[int]:
    """150 clients that ask for 20 pages each and read nothing."""
    opened = []
    loop = asyncio.get_running_loop()
    for _ in range(150):
        peer = socket.socket()
        peer.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4_096)
        peer.setblocking(False)
        opened.append(peer)
        await loop.sock_connect(peer, ("127.0.0.1", served.port))
        with contextlib.suppress(OSError):
            await loop.sock_sendall(peer, request("GET", "/static/uplot.min.js") * 20)
    await asyncio.sleep(2.0)
    for peer in opened:
        peer.close()
    return []


@attack(0)
async def idle_connections(served: Served) -> list[int]:
    """More connections than the console accepts, which send nothing."""
    peers = await crowd(served)
    await asyncio.sleep(1.0)
    for peer in peers:
        peer.abort()
    return []


@attack(0, 400, 405, 421)
async def other_protocols(served: Served) -> list[int]:
    """TLS, HTTP/2, garbage, smuggled lengths, unknown methods and foreign hosts."""
    return await ask_all(
        served,
        (
            b"\x16\x03\x01\x02\x00\x01\x00" + bytes(512),
            b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes(100),
            bytes(4_096),
            b"\r\n" * 10_000,
            b"GET / HTTP/9.9\r\nHost: x\r\n\r\n",
            b"GET / HTTP/1.1\r\n\r\n",
            b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\nHost: 127.0.0.1\r\n\r\n",
            b"GET / HTTP/1.1\r\nHost: [\r\n\r\n",
            b"GET / HTTP/1.1\r\nHost: evil.example\r\n\r\n",
            b"POST /topics/new HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 5\r\n"
            b"Content-Length: 6\r\n\r\nabcdef",
            b"POST /topics/new HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: -1\r\n\r\n",
            request("TRACE", "/"),
            request("M" * 10_000, "/"),
            request("CONNECT", "other:1"),
        ),
    )
