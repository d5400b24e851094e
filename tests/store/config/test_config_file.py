"""RocketMQ's JSON files: both dialects are read, Apache's own bytes are written, and no crash of a
writer loses the last whole file."""

from __future__ import annotations

import errno
import itertools
import json
import tarfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from cometmq.store.config.catalog import COMPACT, FILES, Fault, check_of, examine, problems
from cometmq.store.format.disk import Disk
from cometmq.store.format.json_file import (
    ConfigFileError,
    ConfigSyntaxError,
    backup_of,
    dumps,
    load,
    loads,
    persist,
)
from cometmq.tests.formats.cases import CASES, GOLDEN

KEYS = st.one_of(st.text(max_size=8), st.integers())
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=12),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=3),
    max_leaves=12,
)


@given(st.dictionaries(KEYS, VALUES, max_size=5), st.booleans())
@example({"\ud800": "\udfff", "a\t\n\x00": "\ue000-1"}, False)
@example({1: 2, "\ue000" + "1": 3, "\\ue001": "// no /* comment */ 'x' , }"}, False)
def test_what_is_written_is_read_back(value: dict[str | int, object], compact: bool) -> None:
    written = dumps(value, compact=compact)
    assert loads(written) == value
    assert not compact or written.isascii()
    assert written.encode()


@given(st.dictionaries(st.integers(), st.integers(), max_size=5), st.text(max_size=20))
def test_the_older_dialect_is_read(table: dict[int, int], text: str) -> None:
    """fastjson 1 writes maps of numbers on one line; a string that looks like one stays as it
    is."""
    inside = ",".join(f"{key}:{value}" for key, value in table.items())
    written = f'{{"offsetTable":{{{inside}\n\t}},"text":{json.dumps(text + "{1:2,3:4}")}}}'
    assert loads(written) == {"offsetTable": table, "text": text + "{1:2,3:4}"}


@pytest.mark.parametrize(
    ("written", "value"),
    [
        ("\ufeff{ }", {}),
        ("{'a\\'\"b' : 'c\\\\', }", {"a'\"b": "c\\"}),
        ("{a_b:1, $c:[1,2,], -5:{1:2,},}", {"a_b": 1, "$c": [1, 2], -5: {1: 2}}),
        ('{"a":1 // one, }\n , /* two: {, */ "b":true}', {"a": 1, "b": True}),
        ('{"a":"// \'no\' {1:2,}"}', {"a": "// 'no' {1:2,}"}),
        ('{"a":"tab\there", 1:null}', {"a": "tab\there", 1: None}),
        ('{"1":2,1:3}', {"1": 2, 1: 3}),
        ('{"a":1.5e3,"a":-2.25}', {"a": -2.25}),
    ],
)
def test_hand_made_files_are_read(written: str, value: dict[str | int, object]) -> None:
    assert loads(written) == value


@pytest.mark.parametrize(
    ("written", "position"),
    [
        ("", 0),
        ("[]", 0),
        ("{1:2,\n  3:4, 'x':}", 17),
        ('{"a":NaN}', 0),
        ('{"a":1e999}', 0),
        ("{'a':-7525e195684123}", 0),
        ('{"a" 1}', 5),
        ("{" * 100_000, 1),
        ('{"a":' * 100_000, 0),
        ("[" * 100_000, 0),
        ('{"' + '\\"' * 50_000, 1),
        ("{" + "x" * 200_000, 1),
        ("{" + "/*" * 100_000, 0),
    ],
)
def test_text_that_is_not_an_object_is_refused_with_its_position(
    written: str, position: int
) -> None:
    with pytest.raises(ConfigSyntaxError) as caught:
        loads(written)
    assert abs(caught.value.position - position) <= 1 or position == 0


@given(st.text() | st.text(alphabet="{}[]:,\"'\\/*-0123456789 \nae\x00\ue000"))
def test_no_text_crashes_the_reader(text: str) -> None:
    try:
        loads(text)
    except ConfigSyntaxError as error:
        assert error.reason


@given(st.sampled_from(sorted(FILES)), st.binary() | st.text(alphabet='{}":,1a').map(str.encode))
def test_no_bytes_crash_the_examination(name: str, data: bytes) -> None:
    for fault in examine(name, data):
        assert 0 <= fault.begin < fault.end <= len(data)
        assert fault.reason


@given(st.sampled_from(sorted(FILES)), VALUES)
def test_no_value_crashes_a_check(name: str, value: object) -> None:
    for problem in problems(name, value):
        assert problem.endswith(".")


def golden_files(case: str) -> Iterator[tuple[str, bytes]]:
    with tarfile.open(GOLDEN / f"{case}.tar.gz") as archive:
        for member in archive:
            parts = member.name.split("/")
            if member.isfile() and parts[1] in ("config", "compaction") and member.size:
                file = archive.extractfile(member)
                assert file is not None
                yield "/".join(parts[1:]), file.read()


@pytest.mark.parametrize("case", CASES)
def test_every_file_of_apache_is_written_unchanged(case: str) -> None:
    seen = 0
    for path, data in golden_files(case):
        folder, name = path.split("/")
        if name == "timercheck":
            continue
        seen += 1
        content = loads(data.decode())
        assert dumps(content, compact=name.removesuffix(".bak") in COMPACT).encode() == data
        if folder == "config":
            assert check_of(name) is not None
            assert examine(name, data) == []
    assert seen >= 5


def test_damage_is_reported_at_its_position() -> None:
    files = dict(golden_files("grpc"))
    data = files["config/topics.json"]
    size = len(data)
    at = data.index(b'"perm":6') + 7
    assert examine("topics.json", data[:at] + b"x" + data[at + 1 :]) == [
        Fault(at, size, "not JSON: Expecting value.")
    ]
    zeroed = data[:at] + bytes(16) + data[at + 16 :]
    assert examine("topics.json", zeroed) == [Fault(at, at + 16, "unescaped control characters.")]
    (cut,) = examine("topics.json", data[:at])
    assert cut.begin >= at - 1
    (utf8,) = examine("topics.json", data[:at] + b"\xff" + data[at:])
    assert (utf8.begin, utf8.end) == (at, at + 1)
    for old, new in (
        (b'"topicName":"TBW102"', b'"topicName":"TBW103"'),
        (b'"readQueueNums"', b'"readQueueNumz"'),
        (b'"perm":6', b'"perm":""'),
        (b'"order":false', b'"order":null'),
    ):
        changed = data.replace(old, new, 1)
        places = [(fault.begin, fault.end) for fault in examine("topics.json", changed)]
        # null is how Apache's reader sees a field that is not there.
        assert places == ([] if b"null" in new else [(0, len(changed))])
    offsets = files["config/consumerOffset.json"]
    assert examine("consumerOffset.json", offsets.replace(b"@", b"$", 1))
    assert examine("consumerOffset.json", b"") == []


# -- the protocol --------------------------------------------------------------------------------


def test_a_refused_file_and_backup_stay_as_they_are(tmp_path: Path) -> None:
    path = tmp_path / "topics.json"
    for one in (path, backup_of(path)):
        one.write_text("{")
    for _ in range(2):
        with pytest.raises(ConfigFileError, match="both unreadable"):
            load(path)
        assert sorted(each.name for each in tmp_path.iterdir()) == [
            "topics.json",
            "topics.json.bak",
        ]


def test_the_backup_is_read_when_the_file_is_broken(tmp_path: Path) -> None:
    path = tmp_path / "config" / "topics.json"
    assert load(path) is None
    persist(path, '{"version":1}')
    persist(path, '{"version":2}')
    assert load(path) == {"version": 2}
    for broken in ("", "{", "[]", "\x00", '{"version":"two"}'):
        path.write_text(broken)
        assert load(path, lambda content: int(content["version"])) == {"version": 1}
        assert not path.exists(), "a broken file must not become the next backup"
        assert path.with_name("topics.json.broken").read_text() == broken
    path.write_bytes(b"\xff")
    assert load(path) == {"version": 1}
    path.with_name("topics.json.bak").write_text("{")
    with pytest.raises(ConfigFileError, match="unreadable"):
        load(path)


@pytest.mark.parametrize("text", ['{"offset":17,"name":"é"}', "{}", dumps({"a": {0: 17}})])
def test_a_changed_byte_of_a_file_of_ours_is_never_used(tmp_path: Path, text: str) -> None:
    path = tmp_path / "x.json"
    persist(path, '{"offset":16}')
    persist(path, text)
    assert load(path) == loads(text)
    whole = path.read_bytes()
    for at in range(len(whole)):
        path.write_bytes(whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :])
        found = load(path)
        # Only the name of the checksum, or a space in front of it, may differ unnoticed.
        known = {**loads(text), **({} if found is None else found)} == found
        assert found == {"offset": 16} or (known and at < 20), at
        path.write_bytes(whole)


def test_a_file_without_its_checksum_line_is_used_as_edited(tmp_path: Path) -> None:
    path = tmp_path / "x.json"
    persist(path, '{"n":1}')
    persist(path, dumps({"n": 2}))
    edited = path.read_text().replace("2", "3")
    path.write_text(edited)
    assert load(path) == {"n": 1}
    assert path.with_name("x.json.broken").read_text() == edited
    path.write_text("".join(line for line in edited.splitlines(True) if "cometmq" not in line))
    assert load(path) == {"n": 3}


class Crash(BaseException):
    """The process is gone."""


def crash_at(call: int) -> Disk:
    """A disk on which the process dies before its call number `call`; a pwrite writes half."""
    disk = Disk()
    calls = itertools.count()

    def fault(name: str) -> None:
        if next(calls) == call:
            raise Crash

    disk.fault = fault
    return disk


@pytest.mark.parametrize("generations", [0, 1, 2])
def test_a_crash_anywhere_leaves_a_whole_file(tmp_path: Path, generations: int) -> None:
    """And it is the newest or the one before; Apache's own reader would take the same."""
    old = {"n": generations} if generations else None
    for call in itertools.count():
        path = tmp_path / str(call) / "x.json"
        for number in range(generations):
            persist(path, dumps({"n": number + 1}))
        try:
            persist(path, dumps({"n": 9}), crash_at(call))
        except Crash:
            assert load(path) in (old, {"n": 9})
            persist(path, dumps({"n": 10}))
            assert load(path) == {"n": 10}
            continue
        assert load(path) == {"n": 9}
        assert call >= 5
        break


def test_a_torn_temporary_file_is_ignored(tmp_path: Path) -> None:
    path = tmp_path / "x.json"
    persist(path, '{"n":1}')
    (tmp_path / "x.json.tmp").write_text('{"n')
    assert load(path) == {"n": 1}
    persist(path, '{"n":2}')
    assert load(path) == {"n": 2}
    assert sorted(each.name for each in tmp_path.iterdir()) == ["x.json", "x.json.bak"]


def test_a_full_disk_leaves_the_file_alone(tmp_path: Path) -> None:
    path = tmp_path / "x.json"
    persist(path, '{"n":1}')
    disk = Disk()

    def full(name: str) -> None:
        if name == "pwrite":
            raise OSError(errno.ENOSPC, "full")

    disk.fault = full
    with pytest.raises(OSError, match="full"):
        persist(path, '{"n":2}', disk)
    assert load(path) == {"n": 1}
    assert [each.name for each in tmp_path.iterdir()] == ["x.json"]
