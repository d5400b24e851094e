"""The small files in `<store>/ha/` survive a crash at any byte, or raise an error that tells what
to do."""

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cometmq.ha.errors import DamagedStateError, WrongReplicaError
from cometmq.ha.state.positions import POSITIONS_NAME, Positions
from cometmq.ha.state.replica_meta import META_NAME, Identity, start_replica
from cometmq.ha.state.slots import SlotFile
from cometmq.store.format.disk import Disk
from cometmq.store.format.slot_file import SLOT_BYTES, decode_slot, encode_slot

IDENTITY = Identity("cluster", "group", 1)
STATES = st.dictionaries(st.text(max_size=20), st.integers() | st.text(max_size=50), max_size=8)


@given(sequence=st.integers(0, 10**15), state=STATES)
def test_a_slot_is_decoded_as_encoded(sequence: int, state: dict[str, Any]) -> None:
    slot = encode_slot(sequence, state)
    assert len(slot) == SLOT_BYTES
    assert decode_slot(slot) == (sequence, state)


@given(position=st.integers(0, 130), bit=st.integers(0, 7))
def test_a_flipped_bit_is_detected_or_harmless(position: int, bit: int) -> None:
    state = {"replica_uuid": "0" * 36, "incarnation": 7, "cluster": "some cluster", "group": "g"}
    slot = bytearray(encode_slot(3, state))
    slot[position] ^= 1 << bit
    assert decode_slot(bytes(slot)) in (None, (3, state))


def test_the_layout_is_text() -> None:
    slot = encode_slot(5, {"confirm": 42})
    expected = b'cometmq-ha1 00000000000000000005 3fc1b18f 000015\n{"confirm": 42}\n'
    assert slot[:32] == expected[:32]
    assert slot[41:] == expected[41:].ljust(SLOT_BYTES - 41, b"\n")


def test_an_existing_file_can_be_saved_on_a_full_disk(tmp_path: Path) -> None:
    disk = Disk()
    slots = SlotFile(tmp_path / "state", durable=True, disk=disk)
    slots.save({"n": 1})
    assert (tmp_path / "state").stat().st_size == 2 * SLOT_BYTES, "the second one has its room"
    allocated = disk.counts["fallocate"]
    slots.save({"n": 2})
    slots.close()
    again = SlotFile(tmp_path / "state", durable=True, disk=disk)
    assert again.load() == {"n": 2}
    again.save({"n": 3})
    assert disk.counts["fallocate"] == allocated == 1
    again.close()


def test_a_state_that_does_not_fit_is_refused() -> None:
    with pytest.raises(ValueError, match="do not fit"):
        encode_slot(1, {"name": "x" * SLOT_BYTES})


def test_a_torn_write_keeps_the_previous_state(tmp_path: Path) -> None:
    path = tmp_path / "state"
    for number in (1, 2, 3):
        slots = SlotFile(path, durable=True)
        slots.load()
        slots.save({"n": number})
        slots.close()
    whole = path.read_bytes()
    newest = 3 % 2 * SLOT_BYTES
    for cut in (0, 1, 40, 55, 60, SLOT_BYTES - 1):
        torn = whole[: newest + cut] + b"\0" * (SLOT_BYTES - cut) + whole[newest + SLOT_BYTES :]
        path.write_bytes(torn)
        state = SlotFile(path, durable=True).load()
        assert state == ({"n": 3} if cut >= 60 else {"n": 2})


def test_a_file_without_a_valid_slot_raises_with_advice(tmp_path: Path) -> None:
    path = tmp_path / "state"
    path.write_bytes(b"x" * 2 * SLOT_BYTES)
    with pytest.raises(DamagedStateError, match="Restore the file"):
        SlotFile(path, durable=True).load()


def test_a_file_without_its_first_write_is_empty(tmp_path: Path) -> None:
    path = tmp_path / "state"
    path.write_bytes(b"")
    assert SlotFile(path, durable=True).load() is None


def test_a_durable_save_is_synced(tmp_path: Path) -> None:
    disk = Disk()
    slots = SlotFile(tmp_path / "state", durable=True, disk=disk)
    slots.save({"n": 1})
    assert (disk.counts["fdatasync"], disk.counts["fsync"]) == (1, 1)


def test_a_replica_keeps_its_uuid_and_counts_its_starts(tmp_path: Path) -> None:
    first = start_replica(tmp_path, IDENTITY)
    second = start_replica(tmp_path, IDENTITY)
    assert (first.incarnation, second.incarnation) == (1, 2)
    assert first.replica_uuid == second.replica_uuid
    assert second.promised_epoch == 1
    assert start_replica(tmp_path / "other", IDENTITY).replica_uuid != first.replica_uuid


def test_a_replica_may_change_its_id_but_not_its_group(tmp_path: Path) -> None:
    start_replica(tmp_path, IDENTITY)
    assert start_replica(tmp_path, Identity("cluster", "group", 0)).incarnation == 2
    with pytest.raises(WrongReplicaError, match="storePathRootDir"):
        start_replica(tmp_path, Identity("cluster", "another", 1))


def test_a_start_that_cannot_be_written_does_not_count(tmp_path: Path) -> None:
    start_replica(tmp_path, IDENTITY)
    before = (tmp_path / META_NAME).read_bytes()
    disk = Disk()

    def fault(call: str) -> None:
        if call == "pwrite":
            raise OSError(28, "No space left on device")

    disk.fault = fault
    with pytest.raises(OSError, match="No space"):
        start_replica(tmp_path, IDENTITY, disk)
    assert (tmp_path / META_NAME).read_bytes() == before


def test_positions_are_restored_and_damage_means_unknown(tmp_path: Path) -> None:
    positions = Positions(tmp_path)
    assert positions.confirm == 0
    positions.save(500)
    positions.save(700)
    positions.close()
    assert Positions(tmp_path).confirm == 700
    (tmp_path / POSITIONS_NAME).write_bytes(b"x" * 2 * SLOT_BYTES)
    assert Positions(tmp_path).confirm == 0


def test_unmoved_positions_are_not_written(tmp_path: Path) -> None:
    positions = Positions(tmp_path)
    positions.save(0)
    assert not (tmp_path / POSITIONS_NAME).exists()


def test_the_answered_end_survives_a_kill_and_is_lowered_by_a_cut(tmp_path: Path) -> None:
    positions = Positions(tmp_path)
    positions.save(500, 500)
    positions.note_answered(900)  # and the process is killed
    again = Positions(tmp_path)
    assert (again.confirm, again.local_ok) == (500, 900)
    again.close()
    slots = SlotFile(tmp_path / POSITIONS_NAME, durable=False)
    slots.load()
    slots.save({"confirm": 500, "local_ok": 500})  # as a cut does
    assert Positions(tmp_path).local_ok == 500
