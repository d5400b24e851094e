"""Checker of the drills: acknowledgements of clients against the final logs of all replicas.

Independent of the load and of the product: it reads only histories, events and files
(docs/formats/ha.md, section 5.3). Lost: answered OK and in no log; in an asynchronous group such a
message must be in an archived tail (`archived`, and `replayed` once it is back in the log).
Duplicated: twice in the log although sent once; a repeat after an unknown outcome is `resent` and
allowed. Reordered: a later message of a sender before an earlier one. Phantom: never sent, or only
refused. Moved: not at the offset of the OK. Late (synchronous groups): the attempt began after the
OK of a message behind it in its queue, as if a deposed leader had acknowledged it. Divergent: bytes
that differ between two replicas above the larger log start.
"""

from __future__ import annotations

import mmap
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

from . import history, logwalk
from .labels import wrong_labels

SHOWN = 5
FAULT_S = 1.0  # a broken connection may be detected this much later
REPLAY_MARK = "REPLAY"  # in the name of the property with a replayed message's origin
_BLOCK = 1 << 16
#: Clients that retry inside one call.
RETRYING = ("official", "sdk", "go", "java")
#: Faults after which a forwarding node may repeat a send that the lost leader had stored.
BREAKING = {"kill", "pause", "isolate", "cut", "power-loss", "reset", "fault", "delay"}
#: Roles of a broker that begins or ceases to lead. Roles are sampled: the change was up to SAMPLE_S
#: before the event. A busy machine changes them without a fault of the drill.
CHANGED = {"fenced", "promoting", "leader"}
SAMPLE_S = 1.0
#: Faults from which the time to the first OK is counted.
DISRUPTIVE = {"kill", "pause", "isolate", "power-loss", "switchover", "stop"}


@dataclass(slots=True)
class Promised:
    """One message and the answers its sender got."""

    group: str = ""
    seq: int = 0
    attempts: int = 0
    refused: int = 0
    offset: int | None = None  # of the OK; None without an OK, -1 if the client does not return it
    first_s: float = 0.0
    ok_s: float = 0.0
    ok_attempt_s: float = 0.0  # start of the attempt that was answered OK
    by: str = ""

    @property
    def is_ok(self) -> bool:
        return self.ok_s > 0.0

    def may_repeat(self, faults: list[float]) -> bool:
        """Return whether a repeat of the message is allowed.

        An attempt had an unknown outcome, the client may have retried inside one call, or a fault
        occurred during the only attempt: then the forwarding node may have repeated it.
        """
        if self.attempts - self.refused > 1 or self.by.startswith(RETRYING):
            return True
        return any(self.first_s - FAULT_S <= fault <= self.ok_s for fault in faults)


@dataclass(slots=True)
class Promises:
    """The content of all histories."""

    messages: dict[str, Promised] = field(default_factory=dict)
    got: dict[str, int] = field(default_factory=dict)
    unknown: int = 0
    refused: int = 0
    reasons: dict[str, int] = field(default_factory=dict)
    errors: dict[str, int] = field(default_factory=dict)  # attempts without OK, by client

    @classmethod
    def read(cls, paths: Iterable[Path]) -> Promises:
        """Read every event of every client."""
        found = cls()
        for path in paths:
            last: dict[str, float] = {}
            for event in history.read(path):
                found._take(event, last)
        return found

    def _take(self, event: dict[str, Any], last: dict[str, float]) -> None:
        identity, kind = event["id"], event["e"]
        if kind == "got":
            self.got[identity] = self.got.get(identity, 0) + 1
        elif kind == "invoke":
            one = self.messages.setdefault(identity, Promised(first_s=event["t"], by=event["c"]))
            one.group, one.seq = event["group"], event["seq"]
            one.attempts += 1
            last[identity] = event["t"]
        elif kind == "ok":
            one = self.messages[identity]
            offset = event.get("offset")
            one.offset = -1 if offset is None else int(offset)
            one.ok_s, one.ok_attempt_s = event["t"], last[identity]
        elif kind in ("fail", "unknown"):
            self.messages[identity].refused += kind == "fail"
            self.refused += kind == "fail"
            self.unknown += kind == "unknown"
            why = " ".join(str(event.get("why", "?")).split()[:1])
            self.reasons[why] = self.reasons.get(why, 0) + 1
            self.errors[event["c"]] = self.errors.get(event["c"], 0) + 1

    @property
    def acknowledged(self) -> list[str]:
        return [identity for identity, one in self.messages.items() if one.is_ok]


def all_delivered(paths: Iterable[Path]) -> bool:
    """Return whether consumers received everything that was answered OK."""
    promises = Promises.read(paths)
    return set(promises.acknowledged) <= set(promises.got)


@dataclass(slots=True)
class Check:
    """One expectation of a drill and its result."""

    what: str
    passed: bool
    found: str = ""


@dataclass(slots=True)
class Verdict:
    """The result of a drill."""

    drill: str
    title: str = ""
    mode: str = ""
    acknowledged: int = 0
    unknown: int = 0
    refused: int = 0
    resent: int = 0
    delivered: int = 0
    undelivered: int = 0
    redelivered: int = 0
    lost: list[str] = field(default_factory=list)
    archived: list[str] = field(default_factory=list)
    replayed: int = 0
    duplicated: list[str] = field(default_factory=list)
    reordered: list[str] = field(default_factory=list)
    phantom: list[str] = field(default_factory=list)
    moved: list[str] = field(default_factory=list)
    late: list[str] = field(default_factory=list)
    divergent_bytes: int = 0
    divergence: str = ""
    queue_differences: list[str] = field(default_factory=list)
    wrong_labels: list[str] = field(default_factory=list)  # epochs with wrong labels
    rto_ms: list[float] = field(default_factory=list)
    max_gap_ms: float = 0.0
    official_gap_ms: float = 0.0
    official_errors: int = 0
    seconds: float = 0.0
    checks: list[Check] = field(default_factory=list)
    error: str = ""
    allowed_loss: str = ""  # why the loss is within the documented bound
    reasons: dict[str, int] = field(default_factory=dict)

    def broken(self) -> list[str]:
        """Return a line for every failed check and expectation."""
        found = [f"{c.what}: {c.found}" for c in self.checks if not c.passed]
        for name in ("lost", "duplicated", "reordered", "phantom", "moved", "late"):
            some = getattr(self, name)
            # The lost copy may be the second one: then the first is at another position.
            if some and not (name in ("lost", "moved") and self.allowed_loss):
                found.append(f"{len(some)} {name}: {some[:SHOWN]}")
        if self.archived and self.mode != "async" and not self.allowed_loss:
            found.append(f"{len(self.archived)} acknowledged and cut off: {self.archived[:SHOWN]}")
        if self.divergent_bytes or self.divergence:
            found.append(f"{self.divergent_bytes} divergent bytes: {self.divergence}")
        found += self.queue_differences[:SHOWN] + self.wrong_labels[:SHOWN]
        if self.undelivered:
            found.append(f"{self.undelivered} acknowledged messages were never delivered")
        if self.error:
            found.append(self.error)
        return found

    @property
    def passed(self) -> bool:
        return not self.broken()


@dataclass(frozen=True, slots=True)
class Record:
    """One message of the workload in a log."""

    identity: str
    queue: int
    queue_offset: int
    replayed: bool


def records(store: Path, topic: str) -> list[Record]:
    """Yield the workload's messages in a store's log."""
    return [_record(found) for found in logwalk.walk(store / "commitlog") if found.topic == topic]


def repeat_times(events: list[dict[str, Any]]) -> list[float]:
    """Return when forwarding nodes may repeat sends: at faults, and when the leader changes."""
    faults = [event["t"] for event in events if event["e"] in BREAKING]
    changes = [event["t"] for event in events if event["e"] == "role" and event["role"] in CHANGED]
    return faults + changes + [time_s - SAMPLE_S for time_s in changes]


def _record(found: logwalk.Found) -> Record:
    identity = found.body.split(b"|")[0].decode("utf-8", "replace")
    replayed = any(REPLAY_MARK in name.upper() for name in found.properties)
    return Record(identity, found.queue_id, found.queue_offset, replayed)


def archived(stores: Iterable[Path], topic: str) -> set[str]:
    """Return the identities in every archived tail."""
    return {
        _record(found).identity
        for store in stores
        for path in sorted((store / "ha" / "diverged").glob("*.log"))
        for found in logwalk.walk_bytes(path.read_bytes())
        if found.topic == topic
    }


def check_log(
    verdict: Verdict,
    promises: Promises,
    found: list[Record],
    tails: set[str],
    faults: list[float] = [],  # noqa: B006
) -> None:
    """Compare the final log with the answers; `faults` are fault times."""
    places: dict[str, list[Record]] = defaultdict(list)
    for record in found:
        places[record.identity].append(record)
    verdict.acknowledged = len(promises.acknowledged)
    verdict.unknown, verdict.refused = promises.unknown, promises.refused
    verdict.reasons = promises.reasons
    for identity, one in promises.messages.items():
        _check_one(verdict, identity, one, places.get(identity, []), identity in tails)
        if len([place for place in places.get(identity, []) if not place.replayed]) > 1:
            if one.may_repeat(faults):
                verdict.resent += 1
            else:
                verdict.duplicated.append(identity)
    verdict.phantom += [identity for identity in places if identity not in promises.messages]
    verdict.reordered += list(_reordered(promises, found))


def _check_one(
    verdict: Verdict, identity: str, one: Promised, places: list[Record], in_tail: bool
) -> None:
    original = [place for place in places if not place.replayed]
    verdict.replayed += len(places) - len(original)
    if one.is_ok and in_tail and not original:
        verdict.archived.append(identity)
    if one.is_ok and not places and not in_tail:
        verdict.lost.append(identity)
    if one.refused == one.attempts and places:
        verdict.phantom.append(f"{identity} (refused)")
    promised = one.offset is not None and one.offset >= 0
    if promised and original and one.offset not in {place.queue_offset for place in original}:
        verdict.moved.append(identity)


def late(promises: Promises, found: list[Record]) -> list[str]:
    """Return messages whose attempt began after the OK of a message at a larger queue offset."""
    queues: dict[int, list[tuple[int, Promised, str]]] = defaultdict(list)
    for record in found:
        one = promises.messages.get(record.identity)
        if one is not None and one.is_ok and one.offset == record.queue_offset:
            queues[record.queue].append((record.queue_offset, one, record.identity))
    wrong = []
    for queue in queues.values():
        earliest_ok_s = float("inf")
        for _, one, identity in sorted(queue, key=lambda entry: entry[0], reverse=True):
            if one.ok_attempt_s > earliest_ok_s:
                wrong.append(identity)
            earliest_ok_s = min(earliest_ok_s, one.ok_s)
    return wrong


def _reordered(promises: Promises, found: list[Record]) -> Iterator[str]:
    """Return disorder per sender, by first positions; a replayed tail has no order."""
    first: dict[str, int] = {}
    for at, record in enumerate(found):
        if not record.replayed:
            first.setdefault(record.identity, at)
    newest: dict[str, tuple[int, str]] = {}
    for identity in sorted(first, key=first.__getitem__):
        one = promises.messages.get(identity)
        if one is None or not one.is_ok:
            continue
        seq, before = newest.get(one.group, (0, ""))
        if one.seq < seq:
            yield f"{identity} after {before}"
        else:
            newest[one.group] = (one.seq, identity)


def check_deliveries(verdict: Verdict, promises: Promises, found: list[Record]) -> None:
    """Check that every message in the final log was delivered at least once."""
    verdict.delivered = len(promises.got)
    verdict.redelivered = sum(times - 1 for times in promises.got.values())
    there = {record.identity for record in found}
    verdict.undelivered = len(there - set(promises.got))


def check_stores(
    verdict: Verdict, stores: dict[str, Path], *, queues: bool = True, ends: bool = True
) -> None:
    """Check that logs are identical, queues equal their rebuild, and labels are correct.

    Without `ends` logs are compared up to the end of the shorter one.
    """
    names = sorted(stores)
    for other in names[1:]:
        logs = stores[names[0]] / "commitlog", stores[other] / "commitlog"
        count, sentence = divergent(*logs, ends=ends)
        verdict.divergent_bytes += count
        if sentence:
            verdict.divergence = f"{names[0]} and {other}: {sentence}"
    for name in names:
        verdict.wrong_labels += [f"{name}: {sentence}" for sentence in wrong_labels(stores[name])]
    if not queues:
        return
    for name in names:
        try:
            wrong = logwalk.queue_differences(stores[name])
        except AssertionError as error:
            wrong = [str(error)]
        verdict.queue_differences += [f"{name}: {sentence}" for sentence in wrong]


def divergent(one: Path, other: Path, *, ends: bool = True) -> tuple[int, str]:
    """Return the number of bytes that differ above the larger log start, and the first position."""
    found_ends = logwalk.log_end(one), logwalk.log_end(other)
    files = [{int(path.name): path for path in logwalk.segments(folder)} for folder in (one, other)]
    count, sentence = abs(found_ends[0] - found_ends[1]) if ends else 0, ""
    if count:
        sentence = f"they end at {found_ends[0]} and {found_ends[1]}"
    start = max(min(found, default=0) for found in files)
    for base in sorted(set(files[0]) & set(files[1])):
        if base < start or base >= min(found_ends):
            continue
        some, at = _differing(files[0][base], files[1][base], min(found_ends) - base)
        if some and not sentence:
            sentence = f"byte {base + at} is the first that differs"
        count += some
    return count, sentence


def _differing(one: Path, other: Path, limit: int) -> tuple[int, int]:
    with one.open("rb") as left_file, other.open("rb") as right_file:
        left = mmap.mmap(left_file.fileno(), 0, access=mmap.ACCESS_READ)
        right = mmap.mmap(right_file.fileno(), 0, access=mmap.ACCESS_READ)
    count, first = 0, -1
    for at in range(0, min(len(left), limit), _BLOCK):
        end = min(at + _BLOCK, len(left), limit)
        a, b = left[at:end], right[at:end]
        if a != b:
            wrong = [i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y]
            count += len(wrong) or abs(len(a) - len(b))
            first = at + (wrong[0] if wrong else 0) if first < 0 else first
    return count, first


def measure(verdict: Verdict, promises: Promises, events: list[dict[str, Any]]) -> None:
    """Compute recovery times and the longest time without an OK."""
    oks = sorted((one.ok_s, one.ok_attempt_s) for one in promises.messages.values() if one.is_ok)
    begin = next((event["t"] for event in events if event["e"] == "load"), 0.0)
    end = next((event["t"] for event in reversed(events) if event["e"] == "unload"), 0.0)
    verdict.max_gap_ms = _gap(oks, end)
    official = [one for one in promises.messages.values() if one.by.startswith("official")]
    verdict.official_gap_ms = _gap(sorted((m.ok_s, m.ok_s) for m in official if m.is_ok), end)
    verdict.official_errors = sum(
        count for client, count in promises.errors.items() if client.startswith("official")
    )
    for event in events:
        if event["e"] not in DISRUPTIVE or not begin <= event["t"] <= end:
            continue
        after = [ok for ok, left in oks if left >= event["t"]]
        if after:
            verdict.rto_ms.append(round((after[0] - event["t"]) * 1000, 1))


def _gap(oks: list[tuple[float, float]], end: float) -> float:
    times = [ok for ok, _ in oks if not end or ok <= end]
    gaps = (after - before for before, after in pairwise(times))
    return round(max(gaps, default=0.0) * 1000, 1)
