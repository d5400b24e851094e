"""Client ids and message ids.

A message id has 34 upper-case hex digits: 01, the machine's MAC address (6 bytes), the process id
(2), seconds since 2021 (4), a counter (4) (docs/formats/grpc-api.md, section 6.2). A client id is
unique for every client object: `host@pid@number@time`.
"""

from __future__ import annotations

import hashlib
import itertools
import os
import socket
import uuid

from .clock import wall_ms

_EPOCH_2021_S = 1_609_459_200
_COUNTER_BITS = 32
_DIGITS = "0123456789abcdefghijklmnopqrstuvwxyz"
_clients = itertools.count()


class MessageIds:
    """Generator of message ids."""

    def __init__(self) -> None:
        seconds = (wall_ms() // 1000 - _EPOCH_2021_S) & 0xFFFFFFFF
        node = uuid.getnode() & 0xFFFFFFFFFFFF
        # The counter starts at random: two generators of one process may start in the same second.
        self._prefix = f"01{node:012X}{os.getpid() & 0xFFFF:04X}{seconds:08X}"
        self._next = itertools.count(int.from_bytes(os.urandom(4), "big")).__next__

    def make(self) -> str:
        """Return the next id."""
        return f"{self._prefix}{self._next() & ((1 << _COUNTER_BITS) - 1):08X}"


def client_id() -> str:
    """Return an id that is unique for every producer and consumer object of every process."""
    return f"{socket.gethostname()}@{os.getpid()}@{next(_clients)}@{_base36(wall_ms())}"


def _base36(number: int) -> str:
    text = ""
    while number:
        number, digit = divmod(number, 36)
        text = _DIGITS[digit] + text
    return text or "0"


def unique_key(*parts: object) -> str:
    """Return a message id of 32 hexadecimal digits, derived from parts that a retry repeats.

    So a repetition sends the same id: it can be found, and a broker with
    `messageDeduplicationEnable` stores each message once (docs/formats/grpc-api.md, section 10.3).
    """
    text = "\0".join(map(str, parts)).encode()
    return hashlib.blake2b(text, digest_size=16).hexdigest().upper()
