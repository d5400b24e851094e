"""Rebuild of a lost epoch history from the EPOCH_START records of the log."""

from __future__ import annotations

from pathlib import Path

import pytest

from cometmq.ha.core.epochs import EpochHistory, EpochStart
from cometmq.ha.errors import DamagedStateError
from cometmq.ha.state import epochs_file
from cometmq.ha.state.epoch_scan import EPOCH_START_TAG, scan
from cometmq.proto import v1
from cometmq.store.format.topic_names import META_TOPIC
from tests.store.kit import Kit


def _begin(kit: Kit, epoch: int) -> EpochStart:
    start = kit.store.log_end
    body = v1.EpochStart(epoch=epoch, leader_id=1, start=start).SerializeToString()
    kit.write(body, topic=META_TOPIC, tags=EPOCH_START_TAG)
    return EpochStart(epoch, start)


def test_the_scan_finds_every_epoch_at_its_start(tmp_path: Path) -> None:
    kit = Kit(tmp_path)
    kit.open()
    entries = []
    for epoch in (1, 2, 5):
        entries.append(_begin(kit, epoch))
        kit.write_many(17)
    history = scan(kit.store)
    assert history is not None
    assert history.entries == tuple(entries)
    kit.close()


def test_a_roll_between_the_start_and_its_record_changes_nothing(tmp_path: Path) -> None:
    """The record lies in the next segment then, the epoch begins with the blank in front of it."""
    kit = Kit(tmp_path)
    kit.open()
    _begin(kit, 1)
    while kit.store.log_end < 4096 - 150:
        kit.write(b"x")
    entry = _begin(kit, 2)
    assert entry.start < 4096 < kit.store.log_end
    history = scan(kit.store)
    assert history is not None
    assert history.entries == (EpochStart(1, 0), entry)
    kit.close()


def test_a_repeated_epoch_start_keeps_the_first_start(
    tmp_path: Path,
) -> None:
    kit = Kit(tmp_path)
    kit.open()
    first = _begin(kit, 1)
    kit.write_many(5)
    entry = _begin(kit, 2)
    kit.write_many(5)
    _begin(kit, 2)
    history = scan(kit.store)
    assert history is not None
    assert history.entries == (first, entry)
    kit.close()


def test_bytes_before_the_first_epoch_start_belong_to_the_first_epoch(tmp_path: Path) -> None:
    kit = Kit(tmp_path)
    kit.open()
    kit.write_many(5)
    entry = _begin(kit, 4)
    history = scan(kit.store)
    assert history is not None
    assert history.entries == (EpochStart(1, 0), entry)
    kit.close()


def test_a_log_without_epoch_starts_has_no_history(tmp_path: Path) -> None:
    kit = Kit(tmp_path)
    kit.open()
    assert scan(kit.store) is None
    kit.write_many(30)
    kit.write(b"no epoch", topic=META_TOPIC, tags="META")
    kit.write(b"\xff\xff", topic=META_TOPIC, tags=EPOCH_START_TAG)
    assert scan(kit.store) is None
    kit.close()


def test_the_previous_version_of_the_file_is_kept(tmp_path: Path) -> None:
    one, two = EpochHistory([EpochStart(1, 0)]), EpochHistory([EpochStart(1, 0), EpochStart(2, 9)])
    assert epochs_file.load(tmp_path) is None
    epochs_file.save(tmp_path, one)
    epochs_file.save(tmp_path, two)
    assert epochs_file.load(tmp_path) == two
    assert epochs_file.load(tmp_path, epochs_file.PREVIOUS_NAME) == one


@pytest.mark.parametrize("damage", [b"", b"cometmq-epochs1 00000000\n1 0\n", b"\0" * 40])
def test_a_damaged_file_is_rejected(tmp_path: Path, damage: bytes) -> None:
    (tmp_path / epochs_file.EPOCHS_NAME).write_bytes(damage)
    with pytest.raises(DamagedStateError):
        epochs_file.load(tmp_path)
