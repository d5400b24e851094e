"""An open call of the store that gets EMFILE is tried again: nothing acknowledged is lost, and the
store is not read-only afterwards. Every kind of file that the store opens while it runs."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from cometmq.store.doctor.layout import discover
from cometmq.store.doctor.verify import verify
from cometmq.store.format.disk import Disk
from cometmq.store.format.record import encode_properties
from cometmq.store.format.results import PutStatus
from cometmq.tests.store.kit import Kit, message
from cometmq.tests.store.retention_kit import until

#: Folders, or files without their suffix.
KINDS = ("commitlog", "consumequeue", "consumequeue_ext", "index", "storeDigests")


class ShortDisk(Disk):
    """A disk whose open calls fail for one kind of file, as without descriptors and spare ones."""

    kind = ""
    refused = 0

    def open(self, path: str, flags: int, mode: int = 0o666) -> int:
        self._check(path)
        return super().open(path, flags, mode)

    def sync_directory(self, path: str) -> None:
        self._check(path)
        super().sync_directory(path)

    def _check(self, path: str) -> None:
        if self.kind in (Path(path).name.partition(".")[0], *Path(path).parent.parts):
            self.refused += 1
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE), path)


class ShortKit(Kit):
    make_disk = ShortDisk
    offered = 0

    def lack(self, kind: str) -> ShortDisk:
        assert isinstance(self.disk, ShortDisk)
        self.disk.kind = kind
        return self.disk

    def offer(self, number: int) -> bool:
        """Append a message with a key; return whether it was acknowledged."""
        properties = encode_properties({"KEYS": f"k{number}"})
        body = b"%04d" % number + b"." * 150
        topic, queue_id = f"T{number // 30}", number % 3
        (result,) = self.store.writer.append_many(
            [message(body, topic=topic, queue_id=queue_id, properties=properties)]
        )
        if result.status is not PutStatus.PUT_OK:
            assert result.status in (
                PutStatus.CREATE_MAPPED_FILE_FAILED,
                PutStatus.SERVICE_NOT_AVAILABLE,
            )
        return result.status is PutStatus.PUT_OK

    def assert_has(self, acknowledged: list[int]) -> None:
        """Check log, queues and index."""
        assert [int(body[:4]) for body in self.bodies()] == acknowledged
        for topic, queue_id in {(number // 30, number % 3) for number in acknowledged}:
            expected = [n for n in acknowledged if (n // 30, n % 3) == (topic, queue_id)]
            found = self.queue_bodies(f"T{topic}", queue_id)
            assert [int(body[:4]) for body in found] == expected
        # The flusher writes the last units of a queue a moment later.
        until(lambda: verify(discover(self.root)).findings.problems == [])
        for number in acknowledged[::7]:
            found_by_key = self.store.queries.query(f"T{number // 30}", f"k{number}")
            assert [int(record.body[:4]) for record in found_by_key] == [number]

    def offer_many(self, count: int) -> list[int]:
        """Offer the next messages, and build queues and index; return which were acknowledged."""
        numbers = range(self.offered, self.offered + count)
        self.offered += count
        taken = [number for number in numbers if self.offer(number)]
        self.store.writer.dispatch(self.store.log_end)
        self.store.queries.query("T0", "k0")  # the index catches up
        return taken


@pytest.mark.parametrize("ends", ["close", "kill", "close while lacking"])
@pytest.mark.parametrize("kind", KINDS)
def test_an_open_call_without_a_descriptor_is_tried_again(
    tmp_path: Path, kind: str, ends: str
) -> None:
    kit = ShortKit(
        tmp_path,
        flush_interval_consume_queue=5,
        max_hash_slot_num=5,
        max_index_num=16,  # a file holds 15 entries
        enable_consume_queue_ext=True,
        flush_disk_type="SYNC_FLUSH",
    )
    kit.open()
    acknowledged = kit.offer_many(60)
    assert len(acknowledged) == 60
    for _ in range(3):
        refused = kit.lack(kind).refused

        def is_refused(before: int = refused) -> bool:
            acknowledged.extend(kit.offer_many(10))
            return kit.lack(kind).refused > before

        def goes_on() -> bool:
            taken = kit.offer_many(1)
            acknowledged.extend(taken)
            return bool(taken) and kit.store.writable

        until(is_refused)
        kit.lack("")
        until(goes_on)
        assert not kit.store.index.stall_reason
    if ends == "close while lacking":
        kit.lack(kind)
    if ends == "kill":
        kit.kill()
    else:
        kit.close()
    kit.open()
    kit.dispatch()
    kit.assert_has(acknowledged)
    kit.close()


def test_a_first_start_without_a_descriptor_for_the_checkpoint_waits_for_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ShortDisk, "kind", "checkpoint")
    kit = ShortKit(tmp_path, flush_interval_consume_queue=5)
    kit.open()
    until(lambda: kit.store.paused)
    assert "no free descriptor" in kit.store.refusal
    assert not kit.offer(0)
    kit.lack("")
    until(lambda: kit.store.writable)
    acknowledged = kit.offer_many(40)
    assert len(acknowledged) == 40
    assert kit.reopen().clean
    kit.assert_has(acknowledged)
    kit.close()
