"""Generated AckMessage requests, common and odd, and what the crate must read in them.

    python -m cometmq.tests.broker.pop.ack_cases --requests 10000000 [--seed 1]

compares what the native crate reads in a request with what Python decodes (`check`), and prints the
rate.
"""

from __future__ import annotations

import argparse
import random
import time
from typing import NamedTuple

from google.protobuf.message import DecodeError

from cometmq.broker.messages.wire import STATUS_OK, field
from cometmq.broker.names.handles import decode_handle
from cometmq.broker.pop.ack_request import ReadAcks, common_acks
from cometmq.proto import native, v2

BROKER = "broker-é"
_NUMBERS = ["0", "7", "007", "1795255684123", "9" * 18, "9" * 19, "-1", "+1", "1_0", "", " ", "٣"]
_NAMES = ["t", "group-1", "%RETRY%g", "é", ""]
_EXTRA = [b"\x0a\x00", b"\x12\x03\x12\x01u", b"\x22\x01x", b"\x1a\x00", b"\x18\x01", b"\x0a"]


class Cases:
    """Makes requests from a source of numbers."""

    def __init__(self, source: random.Random) -> None:
        self._source = source

    def request(self) -> bytes:
        """Return one request; about half of them are common."""
        source = self._source
        odd = source.random() < 0.3
        request = v2.AckMessageRequest(group=self._name(odd), topic=self._name(odd))
        for _ in range(source.choice((0, 1, 1, 2, 3, 8)) if odd else source.randrange(1, 4)):
            request.entries.append(self._entry(odd))
        raw = request.SerializeToString()
        if odd and source.random() < 0.3:
            raw += source.choice(_EXTRA)
        if odd and source.random() < 0.3:
            at = source.randrange(len(raw) + 1)
            raw = raw[:at] + source.randbytes(source.randrange(3)) + raw[at + 1 :]
        return raw

    def _name(self, odd: bool) -> v2.Resource:
        source = self._source
        if not odd:
            return v2.Resource(name=source.choice(_NAMES[:3]))
        namespace = source.choice(("", "", "", "namespace"))
        return v2.Resource(name=source.choice(_NAMES), resource_namespace=namespace)

    def _entry(self, odd: bool) -> v2.AckMessageEntry:
        source = self._source
        entry = v2.AckMessageEntry(receipt_handle=self.handle(odd))
        if source.random() < 0.9:
            entry.message_id = source.choice(("01FD", "é", "", "m" * 200))
        if odd and source.random() < 0.05:
            entry.lite_topic = "lite"
        return entry

    def handle(self, odd: bool) -> str:
        """Return a receipt handle; with `odd`, some are not common."""
        source = self._source
        parts = [str(source.getrandbits(40)) for _ in range(9)]
        parts[4] = str(source.randrange(3))
        parts[5] = BROKER
        parts[6] = str(source.randrange(3))
        parts[7] = str(source.randrange(40)) if odd else parts[7]
        if odd and source.random() < 0.1:
            parts[source.randrange(9)] = source.choice((*_NUMBERS, "broker-b"))
        if odd and source.random() < 0.05:
            del parts[source.randrange(9)]
        if odd and source.random() < 0.02:
            parts.append("1")
        return " ".join(parts)


def check(read: ReadAcks, raw: bytes) -> bool:
    """Compare what the crate reads with what Python decodes; return whether it is common."""
    found = read(raw)
    if found is None:
        return False
    try:
        request = v2.AckMessageRequest.FromString(raw)
    except DecodeError:
        raise AssertionError(f"read, but not decodable: {raw!r}") from None
    group, topic, queues, answer = found
    assert (group, topic) == (request.group.name, request.topic.name), raw
    expected: dict[tuple[int, int], tuple[list[int], list[int]]] = {}
    entries = [field(b"\x0a", STATUS_OK)]
    for entry in request.entries:
        handle = decode_handle(entry.receipt_handle)
        assert handle is not None and handle.broker == BROKER and not entry.lite_topic, raw
        offsets, pop_times_ms = expected.setdefault(handle.key, ([], []))
        offsets.append(handle.offset)
        pop_times_ms.append(handle.pop_ms)
        texts = field(b"\x0a", entry.message_id.encode())
        texts += field(b"\x12", entry.receipt_handle.encode())
        entries.append(field(b"\x12", texts + field(b"\x1a", STATUS_OK)))
    assert queues == [(*key, *columns) for key, columns in expected.items()], raw
    assert all(len(set(offsets)) == len(offsets) for offsets, _ in expected.values()), raw
    assert answer == b"".join(entries), raw
    return True


class Outcome(NamedTuple):
    """Requests that were compared, those that the native path read, and the CPU time."""

    compared: int
    equal: int
    cpu_s: float


def run(count: int, seed: int) -> Outcome:
    """Compare `count` requests. Raises AssertionError at the first difference."""
    read = common_acks(native.load(), BROKER)
    assert read is not None, "the native crate is not available"
    cases = Cases(random.Random(seed))
    begin = time.process_time()
    common = sum(check(read, cases.request()) for _ in range(count))
    return Outcome(count, common, time.process_time() - begin)


def main() -> None:
    """See the module's docstring."""
    parser = argparse.ArgumentParser(description="Compare the native reading of acks with Python's")
    parser.add_argument("--requests", type=int, default=100_000)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    done, common, cpu_s = run(options.requests, options.seed)
    print(f"{done} requests, {common} common, all equal; {done / cpu_s:.0f} per CPU second")


if __name__ == "__main__":
    main()
