"""The emulated power loss: what was flushed stays, what was not may go in any way, and the store
comes up."""

from __future__ import annotations

import random
from functools import partial
from pathlib import Path

import pytest

from cometmq.drills.power_loss import arm, lose, main
from cometmq.ha.state.boot_id import boot_id
from cometmq.store.format.disk import Disk
from cometmq.store.log.power_loss_disk import PowerLossDisk
from cometmq.tests.store.kit import Kit

SEGMENT = 64 << 10


def armed(root: Path, **options: object) -> Kit:
    arm(root)
    kit = Kit(root, mapped_file_size_commit_log=SEGMENT, **options)
    kit.make_disk = partial(PowerLossDisk, root)  # type: ignore[assignment]
    return kit


def test_without_the_shadow_folder_nothing_is_recorded(tmp_path: Path) -> None:
    assert not PowerLossDisk.wanted(tmp_path)
    arm(tmp_path)
    assert PowerLossDisk.wanted(tmp_path)


def test_flushed_bytes_survive_a_power_loss(tmp_path: Path) -> None:
    kit = armed(tmp_path, flush_disk_type="SYNC_FLUSH")
    kit.open()
    kit.write_many(50, size=300)
    kit.store._threads._log_flusher.stop()  # type: ignore[union-attr]
    before, end = kit.log_bytes(), kit.store.log_end
    kit.kill()
    loss = lose(tmp_path, 1, kept=0, torn=0)
    assert loss.pages == 0
    assert kit.log_bytes() == before
    assert kit.open().log_end == end
    kit.close()


def test_unflushed_bytes_are_lost(tmp_path: Path) -> None:
    kit = armed(tmp_path, flush_interval_commit_log=60_000)
    kit.open()
    kit.write_many(5, size=300)
    kit.reopen()  # flushes
    end = kit.store.log_end
    kit.write_many(50, size=300)
    kit.store._threads._log_flusher._flush = lambda: None  # type: ignore[union-attr, method-assign]
    kit.kill()
    loss = lose(tmp_path, 1, kept=0, torn=0)
    assert loss.lost == loss.pages > 0
    assert kit.open().log_end == end
    kit.close()


@pytest.mark.parametrize("seed", range(12))
def test_a_store_opens_after_every_power_loss(tmp_path: Path, seed: int) -> None:
    """Torn pages, holes, whole records behind them; flushes in between, several lives."""
    chance = random.Random(seed)
    kit = armed(tmp_path, flush_interval_commit_log=60_000)
    bodies: list[bytes] = []
    safe = 0
    for life in range(4):
        kit.open()
        found = kit.bodies()
        assert found == bodies[: len(found)], "a prefix of what was written"
        assert len(found) >= safe, "with everything that was flushed"
        bodies = found
        for _ in range(chance.randrange(10, 200)):
            body = f"{life}-{len(bodies)}-".encode().ljust(chance.randrange(20, 900), b".")
            kit.write(body)
            bodies.append(body)
            if chance.random() < 0.01:
                kit.store._threads._log_flusher._flush()  # type: ignore[union-attr]
                safe = len(bodies)
        kit.dispatch()
        kit.store._threads._log_flusher._flush = lambda: None  # type: ignore[union-attr, method-assign]
        if life == 3:
            safe = min(safe, len(bodies))
        kit.kill()
        lose(tmp_path, seed * 10 + life)
    report = kit.open()
    assert kit.bodies() == bodies[: len(kit.bodies())]
    assert len(kit.bodies()) >= safe
    assert report.log_end == kit.store.log_end
    kit.close()


def test_the_machine_has_another_boot_id_afterwards(tmp_path: Path) -> None:
    kit = armed(tmp_path)
    kit.open()
    kit.write_many(3)
    kit.kill()
    before = boot_id(tmp_path / "ha")
    assert main(["lose", str(tmp_path), "--seed", "5"]) == 0
    assert boot_id(tmp_path / "ha") != before


def test_without_shadows_nothing_is_lost(tmp_path: Path) -> None:
    kit = Kit(tmp_path)
    kit.open()
    kit.write_many(3)
    kit.kill()
    with pytest.raises(SystemExit, match="arm it"):
        lose(tmp_path, 1)


def test_a_failed_flush_does_not_update_the_shadow(tmp_path: Path) -> None:
    kit = armed(tmp_path, flush_interval_commit_log=60_000)
    kit.open()
    kit.write_many(5, size=300)
    disk: Disk = kit.disk

    def broken(name: str) -> None:
        if name == "fdatasync":
            raise OSError(5, "Input/output error")

    disk.fault = broken
    with pytest.raises(OSError, match="Input/output"):
        kit.store._threads._log_flusher._flush()  # type: ignore[union-attr]
    kit.kill()
    lose(tmp_path, 1, kept=0, torn=0)
    assert kit.open().log_end == 0
    kit.close()
