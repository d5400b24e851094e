"""Generated records, common and odd, and the wire messages that the Python path makes of them.

    python -m cometmq.tests.broker.messages.receive_cases --records 10000000 [--seed 1]

compares the native conversion of runs of records (`broker/messages/runs.py`) with the Python path,
byte for byte, and prints the rate.
"""

from __future__ import annotations

import argparse
import random
import time
from typing import NamedTuple

from cometmq.broker.messages.convert import Receipt, sized_item, topic_field
from cometmq.broker.messages.filters import TagFilter, of_tags
from cometmq.broker.messages.runs import Receipts, Room, Run, RunConverter, run_converter
from cometmq.proto import v2
from cometmq.proto.native import load
from cometmq.store.format.property_names import FORBIDDEN_PROPERTIES
from cometmq.store.format.record import Message, decode_delivery, encode, pack_host
from cometmq.store.format.results import StoredRecord

TOPIC = topic_field(v2.Resource(name="t", resource_namespace="ns"))
ATTEMPTS_MAX = 16
NOW_MS = 1_795_255_684_123
_HOSTS = [
    *(pack_host("10.0.0.2", 50001) for _ in range(8)),
    *(pack_host(host, 8081) for host in ("255.255.255.255", "::1", "2001:db8::1")),
    bytes(10) + b"\xff\xff\x7f\0\0\x01" + bytes(4),  # an IPv4 address in IPv6
]
_TEXTS = ["", "a", "TagA", "key-1", "a b", " ", "  x ", "true", "é", "😀", "v" * 200]
_NUMBERS = ["0", "-1", "1795255684123", "18", "19", "+3", " 3", "", "-", "٣", "9" * 19, "9" * 20]
_NUMERIC = ["TIMER_DELIVER_MS", "TIMER_DELAY_SEC", "DELAY", "_SYS_MSG_PRIORITY_"]
_COMMON = ["TAGS", "KEYS", "UNIQ_KEY", "WAIT", "TRAN_MSG", "__BORNHOST", "colour", "order"]
_SYSTEM = sorted(FORBIDDEN_PROPERTIES.difference(_NUMERIC))
_MALFORMED = [b"no pair", b"a\x01b", b"TAGS\x01\xff\x02", b"\x01\x02", b"\x02", b"a\x01b\x02" * 70]
_EXTREMES = [0, 1, -1, (1 << 31) - 1, -(1 << 31)]
_EXTREME_TIMES = [0, -1, 999, (1 << 63) - 1, -(1 << 63), 253_402_300_799_999]


class Records:
    """Makes records from a source of numbers."""

    def __init__(self, source: random.Random) -> None:
        self._source = source

    def record(self) -> StoredRecord:
        """Return one record; two of three have the common form."""
        source = self._source
        odd = source.random() < 0.33
        message = Message(
            source.choice(("t", "é", "t" * 127)),
            source.choice(_EXTREMES) if odd else source.randrange(8),
            source.randbytes(source.choice((0, 1, 55, 64, 100, 1024))),
            self._properties(odd),
            source.choice(_EXTREMES) if odd else 0,
            # Bit 0: compressed; bits 4 and 5 follow from the hosts.
            source.getrandbits(31) if odd else source.choice((0, 0, 4, 8, 12)),
            self._time(odd),
            source.choice(_HOSTS),
            source.choice(_HOSTS),
            source.choice((0, 15, 16, *_EXTREMES)) if odd else source.randrange(3),
            source.choice(_EXTREME_TIMES) if odd else 0,
        )
        number, place = source.getrandbits(40), source.getrandbits(48)
        return StoredRecord(number, place, encode(message, number, place, self._time(odd)), 0)

    def _time(self, odd: bool) -> int:
        source = self._source
        if odd and source.random() < 0.5:
            return source.choice(_EXTREME_TIMES)
        return NOW_MS + source.randrange(100_000)

    def _properties(self, odd: bool) -> bytes:
        source = self._source
        if odd and source.random() < 0.2:
            return source.choice(_MALFORMED)
        pairs = (self._pair() for _ in range(source.randrange(7)))
        return "".join(f"{name}\x01{value}\x02" for name, value in pairs).encode()

    def _pair(self) -> tuple[str, str]:
        source = self._source
        draw = source.random()
        if draw < 0.6:
            return source.choice(_COMMON), source.choice(_TEXTS)
        if draw < 0.8:
            return source.choice(_NUMERIC), source.choice(_NUMBERS)
        return source.choice(_SYSTEM), source.choice(_TEXTS)


def by_python(
    found: list[StoredRecord],
    room: Room,
    wanted: TagFilter | None,
    receipts: Receipts | None,
    attempts: list[int] | None,
) -> Run:
    """Return the run of the Python path, which converts records of every form."""
    items: list[bytes] = []
    offsets: list[int] = []
    size = end = 0
    start = -1 if receipts is None else receipts.start
    while end < len(found) and len(items) < room.messages and (not items or size < room.size):
        stored = found[end]
        record = decode_delivery(stored.data)
        attempt = 1 if attempts is None else attempts[end]
        end += 1
        if wanted is not None and not wanted.matches(record):
            continue
        start = stored.queue_offset if start < 0 else start
        receipt = None
        if receipts is not None:
            place = f"{stored.queue_offset} {stored.physical_offset}"
            handle = f"{start}{receipts.middle}{place}"
            receipt = Receipt(handle.encode(), receipts.invisible_ms, attempt)
        item, filled = sized_item(TOPIC, record, receipt)
        items.append(item)
        offsets.append(stored.queue_offset)
        size += filled
    return Run(items, offsets, size, end)


def check(converter: RunConverter, found: list[StoredRecord], source: random.Random) -> int:
    """Convert all records in native runs; compare each run. Return the records in the runs.

    A record at which a run ends early is of another form and left to the Python path.
    """
    room = Room(source.randrange(1, 33), source.choice((0, 1, 500, 4096, 1 << 20)))
    wanted = source.choice((None, None, of_tags(["TagA", "a b"]), of_tags(["é"])))
    receipts = None
    if source.random() < 0.7:
        start = source.choice((-1, 0, 1 << 62))
        receipts = Receipts(" 1 2 3 0 broker-é 4 ", start, source.getrandbits(50), ATTEMPTS_MAX)
    attempts = None
    if source.random() < 0.5:
        attempts = [source.randrange(1, 20) for _ in found]
    begin = converted = 0
    while begin < len(found):
        run = converter.run(
            TOPIC, found, begin, room, wanted=wanted, receipts=receipts, attempts=attempts
        )
        rest = None if attempts is None else attempts[begin : run.end]
        expected = by_python(found[begin : run.end], room, wanted, receipts, rest)
        assert run == expected._replace(end=begin + expected.end), found[begin : run.end]
        converted += run.end - begin
        begin = run.end + (run.end == begin)
    return converted


class Outcome(NamedTuple):
    """Records that were compared, those that the native path converted, and the CPU time."""

    compared: int
    equal: int
    cpu_s: float


def run(least: int, seed: int) -> Outcome:
    """Compare at least `least` records. Raises AssertionError at the first difference."""
    converter = run_converter(load())
    assert converter.native is not None, "the native crate is not available"
    source = random.Random(seed)
    records = Records(source)
    begin = time.process_time()
    done = converted = 0
    while done < least:
        found = [records.record() for _ in range(source.randrange(1, 65))]
        converted += check(converter, found, source)
        done += len(found)
    return Outcome(done, converted, time.process_time() - begin)


def main() -> None:
    """See the module's docstring."""
    parser = argparse.ArgumentParser(description="Compare the native conversion with Python's")
    parser.add_argument("--records", type=int, default=100_000)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    done, converted, cpu_s = run(options.records, options.seed)
    print(f"{done} records, {converted} converted, all equal; {done / cpu_s:.0f} per CPU second")


if __name__ == "__main__":
    main()
