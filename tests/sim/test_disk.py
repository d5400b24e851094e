"""The simulated disk loses what a real one may lose, and nothing else."""

import random

from cometmq.tests.sim.replica.records import MESSAGE, build, scan

from .disk import PAGE_BYTES, Disk


def test_a_power_loss_removes_only_unflushed_bytes() -> None:
    fates = set()
    for seed in range(60):
        disk = Disk()
        disk.write(0, b"a" * 1000)
        disk.flush(700)
        disk.lose_power(random.Random(seed))
        assert disk.live[:700] == b"a" * 700
        assert disk.live == disk.durable
        fates.add(bytes(disk.live[700:1000]))
    assert len(fates) > 20
    assert any(b"a" in fate and b"\0" in fate for fate in fates)


def test_pages_survive_a_power_loss_in_any_order() -> None:
    later_without_earlier = 0
    for seed in range(60):
        disk = Disk()
        disk.write(0, b"a" * (4 * PAGE_BYTES))
        disk.lose_power(random.Random(seed))
        later_without_earlier += disk.live[0] == 0 and disk.live[2 * PAGE_BYTES] != 0
    assert later_without_earlier > 0


def test_cut_bytes_are_zero_in_memory_and_on_disk() -> None:
    disk = Disk()
    disk.write(0, b"a" * 500)
    disk.flush(500)
    disk.write(500, b"b" * 100)
    disk.shrink(300, zero=True)
    disk.lose_power(random.Random(1))
    assert not any(disk.live[300:])
    assert disk.live[:300] == b"a" * 300


def test_a_scan_stops_at_the_first_torn_or_damaged_record() -> None:
    log = bytearray(4096)
    records = [build(MESSAGE, number, number, 20 + number) for number in range(5)]
    data = b"".join(records)
    log[: len(data)] = data
    assert [record.identity for record in scan(log, 0, len(data))] == list(range(5))
    assert len(scan(log, 0, len(data) - 1)) == 4
    log[len(records[0]) + len(records[1]) + 18] ^= 4
    assert len(scan(log, 0, len(data))) == 2
