"""Java properties: what people write, and a round trip of everything that can be written."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cometmq.cli.config import properties

TEXT = st.text(max_size=30)
KEYS = st.text(min_size=1, max_size=20)


def values(text: str) -> dict[str, str]:
    return {entry.key: entry.value for entry in properties.parse(text)}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a=1", {"a": "1"}),
        ("a = 1", {"a": "1"}),
        ("a:1", {"a": "1"}),
        ("a 1", {"a": "1"}),
        ("a", {"a": ""}),
        ("a=", {"a": ""}),
        ("  a=b=c", {"a": "b=c"}),
        ("# a=1\n! b=2\n\n   # c=3\n", {}),
        ("a=one\\\n   two", {"a": "onetwo"}),
        ("a=one\\\\\nb=2", {"a": "one\\", "b": "2"}),
        ("a=1\\", {"a": "1"}),
        ("a=1\r\nb=2\rc=3", {"a": "1", "b": "2", "c": "3"}),
        ("a\\=b=c", {"a=b": "c"}),
        ("a\\ b=c", {"a b": "c"}),
        ("a=\\u0041\\t\\q", {"a": "A\tq"}),
        ("a=\\ud83d\\ude00", {"a": "\U0001f600"}),
        ("a=trailing  ", {"a": "trailing  "}),
        ("a=1\na=2", {"a": "2"}),
    ],
)
def test_properties_are_parsed(text: str, expected: dict[str, str]) -> None:
    assert values(text) == expected


def test_entries_have_their_line_numbers() -> None:
    entries = properties.parse("# one\na=1\\\n 2\n\nb=3\n")
    assert [(entry.key, entry.line) for entry in entries] == [("a", 2), ("b", 5)]


def test_a_broken_escape_is_refused_with_its_line() -> None:
    with pytest.raises(properties.PropertiesError, match="line 2"):
        properties.parse("a=1\nb=\\u12")


@given(st.dictionaries(KEYS, TEXT, max_size=6))
def test_dumped_entries_are_read_back(entries: dict[str, str]) -> None:
    assert values(properties.dump(entries, ["a comment"])) == entries


@given(st.text())
def test_any_text_is_parsed_or_refused_with_a_sentence(text: str) -> None:
    try:
        properties.parse(text)
    except properties.PropertiesError as error:
        assert "line" in str(error)


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "iso-8859-1"])
def test_files_in_both_encodings_are_read(tmp_path: Path, encoding: str) -> None:
    path = tmp_path / "broker.conf"
    path.write_bytes("brokerName=b\u00fcro\n".encode(encoding))
    assert [entry.value for entry in properties.read(path)] == ["b\u00fcro"]


def test_a_file_above_the_size_limit_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "segment"
    path.write_bytes(b"\0" * (properties.FILE_SIZE_MAX + 1))
    with pytest.raises(properties.PropertiesError, match="larger than 1 MiB"):
        properties.read(path)
