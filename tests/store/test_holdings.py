"""A store that lacks its log, a part of it, or has another store's refuses to start and changes
nothing; a loss that is meant is accepted, and no offset is used twice."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from cometmq.store import holdings
from cometmq.store.format.errors import AbsentPartError
from cometmq.tests.store.kit import SEGMENT, Kit, filled
from cometmq.tests.store.retention_kit import rounds, small, written

FAST = {"flush_interval_consume_queue": 20}


def left(root: Path, *, clean: bool = True, retained: bool = False) -> Kit:
    """A stopped store of several segments; with `retained`, without the first ones."""
    kit = small(root)
    written(kit)
    if retained:
        rounds(kit.store, 1)
        written(kit)
    kit.close() if clean else kit.kill()
    return kit


def refusal(kit: Kit, **options: Any) -> str:
    kit.options.update(options)
    before = kit.all_files()
    with pytest.raises(AbsentPartError) as raised:
        kit.open()
    assert kit.all_files() == before
    sentence = str(raised.value)
    assert sentence.endswith("start once with acceptAbsent=true. Nothing was changed.")
    return sentence


@pytest.mark.parametrize("clean", [True, False])
@pytest.mark.parametrize("retained", [True, False])
@pytest.mark.parametrize("how", ["removed", "emptied", "elsewhere"])
def test_a_missing_log_is_refused(tmp_path: Path, clean: bool, retained: bool, how: str) -> None:
    root = tmp_path / "store"
    kit = left(root, clean=clean, retained=retained)
    options = {}
    if how == "elsewhere":
        options = {"store_path_commit_log": str(tmp_path / "mount")}
    else:
        shutil.rmtree(root / "commitlog")
        if how == "emptied":
            (root / "commitlog").mkdir()
    place = tmp_path / "mount" if options else root / "commitlog"
    sentence = refusal(kit, **options)
    assert sentence.startswith(f"The commit log is missing: {place} has no segment, but ")
    assert "correct storePathCommitLog" in sentence


def test_a_missing_log_is_refused_without_a_record(tmp_path: Path) -> None:
    kit = left(tmp_path)
    shutil.rmtree(tmp_path / "commitlog")
    holdings.forget(tmp_path, kit.disk)
    assert "the checkpoint shows that records were flushed" in refusal(kit)


def test_an_accepted_loss_of_the_log_reuses_no_offset(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    kit = left(tmp_path)
    end = int(kit.segment_paths()[-1].name) + SEGMENT
    shutil.rmtree(tmp_path / "commitlog")
    kit.options["accept_absent"] = True
    kit.open()
    assert "store.absent_accepted: The commit log is missing" in caplog.text
    assert kit.store.log_start == end
    assert kit.write(b"new", queue_id=1).queue_offset == 20
    kit.dispatch()
    assert kit.queue_bodies(queue_id=1) == [b"new"]
    kit.close()
    del kit.options["accept_absent"]
    kit.open()
    assert kit.queue_bodies(queue_id=1) == [b"new"]
    kit.close()


@pytest.mark.parametrize("clean", [True, False])
def test_a_missing_first_part_is_refused(tmp_path: Path, clean: bool) -> None:
    kit = left(tmp_path, clean=clean)
    kit.segment_paths()[0].unlink()
    assert f"begins at offset {SEGMENT}, but retention has left everything from offset 0" in (
        refusal(kit)
    )


def test_what_retention_deletes_is_not_missed(tmp_path: Path) -> None:
    kit = left(tmp_path, clean=False, retained=True)
    start = int(kit.segment_paths()[0].name)
    kit.open()
    assert kit.store.log_start == start > 0
    kit.kill()
    kit.segment_paths()[0].unlink()
    assert f"retention has left everything from offset {start}" in refusal(kit)


def test_a_missing_last_segment_is_refused_without_a_checkpoint(tmp_path: Path) -> None:
    kit = small(tmp_path, **FAST)
    written(kit)
    kit.close()
    kit.open_only()
    kit.store.start()
    kit.kill()
    kit.segment_paths()[-1].unlink()
    (tmp_path / "checkpoint").unlink()
    before = kit.all_files()
    with pytest.raises(Exception, match="The log had been flushed up to offset"):
        kit.open()
    assert kit.all_files() == before


@pytest.mark.parametrize("name", ["commitlog", "ha", "config"])
def test_a_part_of_another_store_is_refused(tmp_path: Path, name: str) -> None:
    kit, other = left(tmp_path / "own"), Kit(tmp_path / "other")
    other.now_ms += 1000
    other.open()
    other.write(b"other")
    filled(other)
    other.close()
    shutil.rmtree(kit.root / name)
    shutil.copytree(other.root / name, kit.root / name)
    sentence = refusal(kit)
    assert "another store's" in sentence or "of different stores" in sentence


@pytest.mark.parametrize("retained", [True, False])
def test_missing_queues_are_rebuilt_if_the_log_has_all_records(
    tmp_path: Path, retained: bool, caplog: pytest.LogCaptureFixture
) -> None:
    kit = left(tmp_path, retained=retained)
    shutil.rmtree(tmp_path / "consumequeue")
    if retained:
        assert f"{tmp_path / 'consumequeue'} is missing or empty" in refusal(kit)
        return
    kit.open()
    assert "queues.absent" in caplog.text
    assert [kit.store.next_offset("TopicTest", n) for n in range(3)] == [20, 20, 20]
    kit.close()


@pytest.mark.parametrize("name", ["ha/holdings", "config/holdings"])
def test_one_copy_of_the_record_is_enough(tmp_path: Path, name: str) -> None:
    kit = left(tmp_path)
    (tmp_path / name).unlink()
    kit.open()
    assert (tmp_path / name).exists()
    kit.close()


def test_a_store_that_another_program_wrote_is_taken_as_it_is(tmp_path: Path) -> None:
    """Apache's broker writes the checkpoint's first value, and its retention deletes segments."""
    kit = left(tmp_path)
    kit.segment_paths()[0].unlink()
    data = bytearray((tmp_path / "checkpoint").read_bytes())
    data[0:8] = (int.from_bytes(data[0:8], "big") + 5).to_bytes(8, "big")
    (tmp_path / "checkpoint").write_bytes(data)
    kit.open()
    assert kit.store.log_start == SEGMENT
    kit.close()
    kit.segment_paths()[0].unlink()
    assert f"everything from offset {SEGMENT} on" in refusal(kit)
