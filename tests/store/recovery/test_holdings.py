"""A store that lacks its log, a part of it, or has another store's refuses to start and changes
nothing; a loss that is meant is accepted, and no offset is used twice."""

from __future__ import annotations

import errno
import json
import os
import shutil
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from cometmq.cli.root import cli
from cometmq.operations.errors import Exit
from cometmq.store import holdings
from cometmq.store.config.delay_levels import DelayOffsets
from cometmq.store.format.errors import AbsentPartError, CorruptLogError
from cometmq.store.format.json_file import STORE_KEY, persist
from cometmq.tests.store.fake_disk import FakeDisk, Fate, Page
from cometmq.tests.store.kit import SEGMENT, Kit, filled
from cometmq.tests.store.retention_kit import rounds, small, until, written

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


def test_a_flush_between_the_note_and_the_deletion_of_a_segment_keeps_the_note(
    tmp_path: Path,
) -> None:
    """The note of the flush would name a segment that is gone at the next start."""
    kit = small(tmp_path)
    written(kit)
    log, threads = kit.store.log, kit.store._threads
    assert threads.settle(2 * SEGMENT) == ""
    threads._holdings._known = False  # the flush has more to note
    threads._holdings.save(log, threads.flushed)
    noted = holdings.load(tmp_path)[0]
    first = holdings.first_record(log, 2 * SEGMENT)
    assert (noted.log_start, noted.log_first) == (2 * SEGMENT, first)
    kit.kill()
    for path in kit.segment_paths()[:2]:
        path.unlink()
    kit.open()
    assert kit.store.log_start == 2 * SEGMENT
    kit.close()


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
    assert [kit.store.writer.next_offset("TopicTest", n) for n in range(3)] == [20, 20, 20]
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


def lose_segments(kit: Kit, kept: int) -> None:
    for path in kit.segment_paths()[kept:]:
        path.unlink()


def offsets_file(root: Path, **version: str) -> Path:
    """`consumerOffset.json` with an entry, as the broker writes it."""
    path = root / "config" / "consumerOffset.json"
    table = {"TopicTest@group": {"0": 1}}
    persist(path, json.dumps({"dataVersion": version, "offsetTable": table}, separators=(",", ":")))
    return path


# -- what is noted is durable ----------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(6))
def test_what_a_power_loss_takes_was_not_noted(tmp_path: Path, seed: int) -> None:
    """Flushes at any places, also just behind the end of a segment; everything else is lost."""
    root = tmp_path / "store"
    root.mkdir()
    kit, disk = Kit(root, **FAST), FakeDisk(root)
    kit.make_disk = lambda: disk  # type: ignore[assignment]
    kit.open()
    flushed = 0
    for number in range(40):
        kit.write(bytes(300))
        if number % 7 == seed:
            kit.store._threads._log_flusher._flush()  # type: ignore[union-attr]
            flushed = number + 1
    kit.dispatch()
    kit.kill()
    assert holdings.load(root)[0].log_end <= kit.store.flushed_offset
    disk.crash(tmp_path / "lost", Fate(seed, pages=(Page.LOST,)))
    after = Kit(tmp_path / "lost")
    after.open()
    assert len(after.bodies()) == flushed
    after.close()


def test_a_segment_is_noted_with_its_first_flushed_byte(tmp_path: Path) -> None:
    """Also behind a flush that ended exactly with the segment before."""
    kit = Kit(tmp_path)
    kit.open()
    kit.write(bytes(300))
    kit.store.log.roll()
    kit.store._threads._log_flusher._flush()  # type: ignore[union-attr]
    assert holdings.load(tmp_path)[0].log_end == SEGMENT
    kit.write(bytes(300))
    kit.store._threads._log_flusher._flush()  # type: ignore[union-attr]
    assert holdings.load(tmp_path)[0].log_end > SEGMENT
    kit.kill()
    lose_segments(kit, 1)
    (tmp_path / "checkpoint").unlink()
    with pytest.raises(CorruptLogError, match="The log had been flushed up to offset"):
        kit.open()


def test_queues_that_no_flush_covers_are_not_missed(tmp_path: Path) -> None:
    """A power loss takes the queues of a replica whose log begins behind 0, and the log has all of
    their records."""
    kit = small(tmp_path, **FAST)
    kit.store.log.add_segment(2 * SEGMENT)
    written(kit)
    noted = kit.store._holdings
    until(lambda: noted.log_end and (tmp_path / "consumequeue" / "TopicTest").exists())
    kit.store._threads._queue_flusher._note_holdings(kit.store.flushed_offset)  # type: ignore[union-attr]
    kit.kill()
    shutil.rmtree(tmp_path / "consumequeue")
    kit.open()
    kit.dispatch()
    assert [kit.store.max_offset("TopicTest", n) for n in range(3)] == [20, 20, 20]
    kit.close()
    shutil.rmtree(tmp_path / "consumequeue")
    assert "consumequeue is missing or empty" in refusal(kit)


def test_a_part_is_flushed_before_it_is_noted(tmp_path: Path) -> None:
    kit = small(tmp_path)
    offsets_file(tmp_path)
    kit.disk.counts.clear()
    kit.store._threads._queue_flusher._note_holdings(0)  # type: ignore[union-attr]
    assert kit.disk.counts["fsync"] == 2  # the file, and its name
    assert "config/consumerOffset.json" in holdings.load(tmp_path)[0].parts
    kit.close()


def test_a_lack_of_descriptors_delays_the_note(tmp_path: Path) -> None:
    kit = Kit(tmp_path)
    kit.open()
    kit.write(bytes(300))

    def lacking(call: str) -> None:
        if call == "open":
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    kit.disk.fault = lacking
    kit.store.flush_soon()
    until(lambda: kit.store.flushed_offset == kit.store.log_end)
    assert not holdings.load(tmp_path)[0].log_end
    kit.disk.fault = None
    kit.write(bytes(300))
    kit.store.flush_soon()
    until(lambda: kit.store.flushed_offset == kit.store.log_end)
    assert holdings.load(tmp_path)[0].log_end == kit.store.log_end
    assert kit.store.writable
    kit.close()


# -- what is no loss -------------------------------------------------------------------------------


def test_a_record_that_was_forgotten_on_purpose_keeps_the_id(tmp_path: Path) -> None:
    """A cut forgets it; the files of offsets have the id, and may not be written before a kill."""
    kit = left(tmp_path)
    name = holdings.load(tmp_path)[0].id
    offsets_file(tmp_path, **{STORE_KEY: name})
    holdings.forget(tmp_path, kit.disk)
    kit.open()
    kit.kill()
    kit.open()
    assert kit.store.id == name
    kit.close()


def test_the_progress_of_delay_levels_gets_the_id_of_its_store(tmp_path: Path) -> None:
    path = tmp_path / "delayOffset.json"
    persist(path, '{"dataVersion":{"cometmqStore":"former"},"offsetTable":{"1":2}}')
    progress = DelayOffsets(path, lambda: 1)
    progress.load("own")
    progress.save()
    assert '"cometmqStore":"own"' in path.read_text()


def test_a_damaged_file_is_not_another_stores(tmp_path: Path) -> None:
    """Its checksum shows the damage, and its backup counts."""
    kit = left(tmp_path)
    name = holdings.load(tmp_path)[0].id
    for _ in range(2):
        path = offsets_file(tmp_path, **{STORE_KEY: name})
    kit.open()
    kit.close()
    text = path.read_text()
    path.write_text(text.replace(name[:4], "zzzz"))
    kit.open()
    kit.close()


def test_retention_of_apaches_broker_is_no_loss(tmp_path: Path) -> None:
    """It need not change the checkpoint, but writes offsets, without the id."""
    kit = left(tmp_path)
    offsets_file(tmp_path, **{STORE_KEY: holdings.load(tmp_path)[0].id})
    kit.open()
    kit.close()
    kit.segment_paths()[0].unlink()
    refusal(kit)
    path = offsets_file(tmp_path)
    path.write_text(path.read_text().replace("cometmqChecksum", "other"))
    kit.open()
    assert kit.store.log_start == SEGMENT
    kit.close()


def test_a_repair_that_accepts_the_loss_lets_the_store_start(tmp_path: Path) -> None:
    kit = left(tmp_path, clean=False)
    lose_segments(kit, 3)
    (tmp_path / "checkpoint").unlink()
    with pytest.raises(CorruptLogError):
        kit.open()
    run = CliRunner().invoke
    words = ["store", "repair", str(tmp_path)]
    refused = run(cli, words, standalone_mode=False)
    assert refused.return_value == Exit.PROBLEMS
    assert "The log was flushed up to" in refused.output
    with pytest.raises(CorruptLogError):
        kit.open()
    accepted = run(cli, [*words, "--accept-loss"], standalone_mode=False)
    assert "No problems remain" in accepted.output
    kit.open()
    kit.close()


def test_verify_names_a_missing_first_part(tmp_path: Path) -> None:
    kit = left(tmp_path)
    kit.segment_paths()[0].unlink()
    result = CliRunner().invoke(cli, ["store", "verify", str(tmp_path)], standalone_mode=False)
    assert result.return_value == Exit.PROBLEMS
    assert "Retention has left the log from 0 on, and it now begins later." in " ".join(
        result.output.split()
    )


@pytest.mark.parametrize("text", ["", "{}", " {}\n", "null", "[]"])
def test_a_file_that_has_lost_its_table_is_missing(tmp_path: Path, text: str) -> None:
    name = "config/consumerOffset.json"
    (tmp_path / "config").mkdir()
    (tmp_path / name).write_text(text)
    assert list(holdings.present_parts(tmp_path, {name})) == []
    (tmp_path / name).write_text('{"offsetTable":{}}')
    assert list(holdings.present_parts(tmp_path, {name})) == [name]
