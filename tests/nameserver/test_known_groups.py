"""The file of known groups, and the directory's lock."""

from pathlib import Path

import pytest

from cometmq.nameserver.known_groups import DirectoryLockedError, KnownGroups


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
def test_a_damaged_file_counts_as_empty(tmp_path: Path, text: str) -> None:
    (tmp_path / "known-groups").write_text(text, encoding="latin-1")
    assert KnownGroups(str(tmp_path)).open() == frozenset()


def test_without_a_directory_nothing_is_stored() -> None:
    known = KnownGroups("")
    known.save(["broker-a"])
    assert known.open() == frozenset()
