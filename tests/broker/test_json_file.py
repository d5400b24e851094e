"""RocketMQ's JSON files: both dialects are read, and no crash of a writer loses the last whole file."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cometmq.broker import json_file

KEYS = st.one_of(st.text(max_size=8), st.integers().map(str))
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=12),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=3),
    max_leaves=12,
)


@given(st.dictionaries(KEYS, VALUES, max_size=5))
def test_what_is_written_is_read_back(value: dict[str, object]) -> None:
    assert json_file.loads(json_file.dumps(value)) == value


@given(st.dictionaries(st.integers(), st.integers(), max_size=5), st.text(max_size=20))
def test_integer_keys_without_quotes(table: dict[int, int], text: str) -> None:
    """fastjson writes them bare; a string that looks like one stays as it is."""
    inside = ",".join(f"{key}:{value}" for key, value in table.items())
    written = f'{{"offsetTable":{{{inside}\n\t}},"text":{json.dumps(text + "{1:2,3:4}")}}}'
    assert json_file.loads(written) == {
        "offsetTable": {str(key): value for key, value in table.items()},
        "text": text + "{1:2,3:4}",
    }


def test_the_form_is_apaches() -> None:
    text = json_file.dumps({"a": {"b": 1, "c": {}}})
    assert text == '{\n\t"a":{\n\t\t"b":1,\n\t\t"c":{}\n\t}\n}'


def test_the_backup_serves_when_the_file_is_broken(tmp_path: Path) -> None:
    path = tmp_path / "config" / "topics.json"
    assert json_file.load(path) is None
    json_file.persist(path, '{"version":1}')
    json_file.persist(path, '{"version":2}')
    assert json_file.load(path) == {"version": 2}
    for broken in ("", "{", "[]", "\x00"):
        path.write_text(broken)
        assert json_file.load(path) == {"version": 1}
        assert not path.exists(), "a broken file must not become the next backup"
    path.with_name("topics.json.bak").write_text("{")
    with pytest.raises(json_file.ConfigFileError, match="unreadable"):
        json_file.load(path)


async def _save_many(path: Path) -> int:
    rendered = 0

    def render() -> str:
        nonlocal rendered
        rendered += 1
        return json_file.dumps({"n": rendered})

    saver = json_file.Saver(path, render, 0.01)
    for _ in range(50):
        saver.changed()
    await asyncio.sleep(0.1)
    saver.changed()
    await saver.close()
    return rendered


def test_a_burst_of_changes_is_written_once(tmp_path: Path) -> None:
    path = tmp_path / "offsets.json"
    rendered = asyncio.run(_save_many(path))
    assert json_file.load(path) == {"n": rendered}
    assert rendered == 2
