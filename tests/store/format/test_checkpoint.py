"""The checkpoint's bytes (docs/formats/store-format.md, sections 5 and 15, E8)."""

from __future__ import annotations

from pathlib import Path

import pytest

from cometmq.store.format.checkpoint import Checkpoint, CheckpointFile
from cometmq.store.format.disk import Disk
from cometmq.store.format.errors import UnsupportedLayoutError

STORE_MS = 1_700_000_000_123


def test_bytes_are_as_in_the_format(tmp_path: Path) -> None:
    path = tmp_path / "checkpoint"
    file = CheckpointFile(str(path), Disk())
    checkpoint = Checkpoint(STORE_MS, STORE_MS, confirm_physical_offset=139)
    file.save(checkpoint)
    file.close()
    expected = "0000018bcfe5687b" * 2 + "0" * 32 + "000000000000008b"
    assert path.read_bytes()[:64] == bytes.fromhex(expected) + bytes(24)
    assert CheckpointFile(str(path), Disk()).load() == checkpoint


def test_the_sixth_value_and_foreign_bytes_are_kept(tmp_path: Path) -> None:
    path = tmp_path / "checkpoint"
    written = Checkpoint(1, 2, 3, 4, 5, 6)
    path.write_bytes(written.encode().ljust(4091, b"\0") + b"later")
    disk = Disk()
    file = CheckpointFile(str(path), disk)
    loaded = file.load()
    assert loaded == written
    file.save(loaded)
    assert disk.counts["pwrite"] == 0, "nothing changed"
    loaded.physic_msg_timestamp_ms = 9
    file.save(loaded)
    file.close()
    assert path.read_bytes()[148:] == bytes(4091 - 148) + b"later"


def test_our_flushed_end_is_ignored_after_apache_has_written(tmp_path: Path) -> None:
    path = tmp_path / "checkpoint"
    checkpoint = Checkpoint()
    checkpoint.note_flushed(0, STORE_MS)
    assert Checkpoint.decode(checkpoint.encode()).flushed_end == 0, "nothing, but that is known"
    checkpoint.note_flushed(4711, STORE_MS)
    file = CheckpointFile(str(path), Disk())
    file.save(checkpoint)
    file.close()
    data = bytearray(path.read_bytes())
    assert len(data) == 4096
    assert CheckpointFile(str(path), Disk()).load() == checkpoint
    data[:8] = (STORE_MS + 1).to_bytes(8, "big")  # what Apache writes when it has flushed
    path.write_bytes(data)
    loaded = CheckpointFile(str(path), Disk()).load()
    assert (loaded.physic_msg_timestamp_ms, loaded.flushed_end) == (STORE_MS + 1, -1)
    path.write_bytes(data[:48])
    assert CheckpointFile(str(path), Disk()).load().flushed_end == -1


@pytest.mark.parametrize("byte", range(148))
def test_a_damaged_byte_changes_no_value_unless_all_are_unknown(
    tmp_path: Path, byte: int, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "checkpoint"
    checkpoint = Checkpoint(STORE_MS, STORE_MS, 3, 4, 5, 6)
    checkpoint.note_flushed(4711, STORE_MS)
    data = bytearray(checkpoint.encode().ljust(4096, b"\0"))
    data[byte] ^= 0x40
    path.write_bytes(data)
    loaded = CheckpointFile(str(path), Disk()).load()
    expected = checkpoint if byte < 72 else Checkpoint()
    if "checkpoint.damaged" in caplog.text:
        assert loaded == expected
    else:  # a higher first time: as Apache writes it
        assert byte < 8
        assert (loaded.logics_physical_offset, loaded.flushed_end) == (6, -1)


def test_missing_empty_and_short_files(tmp_path: Path) -> None:
    path = tmp_path / "checkpoint"
    assert CheckpointFile(str(path), Disk()).load() == Checkpoint()
    path.write_bytes(b"")
    assert CheckpointFile(str(path), Disk()).load() == Checkpoint()
    path.write_bytes(b"short")
    with pytest.raises(UnsupportedLayoutError, match="Delete it"):
        CheckpointFile(str(path), Disk()).load()
    path.write_bytes(bytes(40))  # an older writer's five values
    with pytest.raises(UnsupportedLayoutError):
        CheckpointFile(str(path), Disk()).load()


def test_a_folder_in_place_of_the_checkpoint_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "checkpoint"
    path.mkdir()
    with pytest.raises(UnsupportedLayoutError, match="Move it away"):
        CheckpointFile(str(path), Disk()).load()
