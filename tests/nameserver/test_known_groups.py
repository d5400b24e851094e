"""The file of known groups, and the directory's lock."""

from pathlib import Path

import pytest

from cometmq.nameserver.config import NameserverConfig
from cometmq.nameserver.known_groups import DirectoryLockedError, KnownGroups
from cometmq.nameserver.server import NameserverServer


def test_saved_names_are_read_back(tmp_path: Path) -> None:
    known = KnownGroups(str(tmp_path / "routes"))
    assert known.open() == frozenset()
    known.save(["broker-b", "broker-a", "broker-a"])
    known.close()
    assert KnownGroups(str(tmp_path / "routes")).open() == {"broker-a", "broker-b"}


def test_a_second_nameserver_is_refused_with_a_sentence(tmp_path: Path) -> None:
    first = KnownGroups(str(tmp_path))
    first.open()
    with pytest.raises(DirectoryLockedError, match="Another nameserver uses"):
        KnownGroups(str(tmp_path)).open()
    first.close()
    KnownGroups(str(tmp_path)).open()


@pytest.mark.parametrize("text", ["", "garbage", "cometmq known groups 1\n3\na\nb\n", "\xff\0"])
async def test_a_damaged_file_refuses_the_start_and_frees_the_directory(
    tmp_path: Path, text: str
) -> None:
    file = tmp_path / "known-groups"
    file.write_text(text, encoding="latin-1")
    config = NameserverConfig(namesrv_data_dir=str(tmp_path), listen_port=0)
    with pytest.raises(ValueError, match=r"known-groups is damaged: restore it, or move it away"):
        await NameserverServer(config).start()
    file.unlink()
    assert KnownGroups(str(tmp_path)).open() == frozenset()


def test_without_a_directory_nothing_is_stored() -> None:
    known = KnownGroups("")
    known.save(["broker-a"])
    assert known.open() == frozenset()
