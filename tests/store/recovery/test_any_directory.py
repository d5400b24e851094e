"""Whatever lies in a directory: it opens, or a StoreError says in a sentence why not and nothing
changed.

Arbitrary bytes, lengths, names and kinds of file, in a directory that was a real store or never was
one.
The codecs have tests of their own; this is about all of them together.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from cometmq.store.format.disk import Disk
from cometmq.store.format.errors import StoreError
from cometmq.store.format.json_file import ConfigFileError, load
from cometmq.store.format.record import encode_properties
from cometmq.store.timer.store import TimerStore
from cometmq.tests.store.kit import Kit, message

OPTIONS: dict[str, Any] = {
    "max_hash_slot_num": 20,
    "max_index_num": 60,
    "enable_consume_queue_ext": True,
    "mapped_file_size_consume_queue_ext": 400,
    "mapped_file_size_timer_log": 5_200,
}
SETTINGS = settings(
    max_examples=100,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
#: Names that mean something, and some that nearly do.
NAMES = (
    *("commitlog/00000000000000000000", "commitlog/00000000000000004096", "commitlog/x"),
    *("commitlog/00000000000000000001", "commitlog/4096", "commitlog/-0000000000000004096"),
    *("consumequeue/TopicTest/0/00000000000000000000", "consumequeue/TopicTest/x/0"),
    *("consumequeue/TopicTest/0/00000000000000000400", "consumequeue/TopicTest/7"),
    *("consumequeue_ext/TopicTest/0/00000000000000000000", "consumequeue/\u0442/0/0"),
    *("index/20260101000000000", "index/20260101000000001", "index/x", "checkpoint", "abort"),
    *("lock", "batchconsumequeue/B/0/00000000000000000000", "notes.txt", "timerwheel"),
    *("commitlog/0", "consumequeue/TopicTest/0/400", "consumequeue/TopicTest/00/0"),
    *(f"consumequeue/{'x' * 200}/0/{0:020d}", f"consumequeue/{'x' * 127}/0/{0:020d}"),
    *("timerlog/00000000000000000000", "config/timercheck", "config/timermetrics"),
)
sizes = st.sampled_from([0, 1, 20, 47, 48, 400, 4095, 4096, 4097, 1320])
contents = st.one_of(st.binary(max_size=200), sizes.map(bytes), sizes.map(lambda n: b"\xff" * n))


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A store with several segments, queues, extension and index files, that was stopped
    cleanly."""
    kit = Kit(tmp_path_factory.mktemp("template") / "store", **OPTIONS)
    kit.open()
    for number in range(60):
        properties = encode_properties({"KEYS": f"k{number}", "TAGS": f"t{number % 3}"})
        kit.store.writer.append_many(
            [message(bytes(200), queue_id=number % 2, properties=properties)]
        )
    kit.dispatch()
    kit.close()
    yield kit.root


def put(root: Path, name: str, data: bytes) -> None:
    """Make a file; what is in its way goes."""
    path = root / name
    for parent in reversed(path.relative_to(root).parents[:-1]):
        if (root / parent).is_file():
            (root / parent).unlink()
    if path.is_dir():
        shutil.rmtree(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)


def change(root: Path, draw: Callable[..., Any]) -> None:
    """One change: of a file that is there, or a new one with a name that means something."""
    files = sorted(str(p.relative_to(root)) for p in root.rglob("*") if p.is_file())
    kinds = ["new", "folder"] + (["bytes", "cut", "grow", "name", "gone", "all"] if files else [])
    kind = draw(st.sampled_from(kinds))
    if kind in ("new", "folder"):
        name = draw(st.sampled_from(NAMES))
        put(root, name, draw(contents))
        if kind == "folder":
            (root / name).unlink()
            (root / name).mkdir()
        return
    path = root / draw(st.sampled_from(files))
    data = path.read_bytes()
    if kind == "bytes":
        at = draw(st.integers(0, max(len(data) - 1, 0)))
        new = draw(st.binary(min_size=1, max_size=40))
        path.write_bytes(data[:at] + new + data[at + len(new) :])
    elif kind == "cut":
        path.write_bytes(data[: draw(st.integers(0, len(data)))])
    elif kind == "grow":
        path.write_bytes(data + draw(contents))
    elif kind == "all":
        path.write_bytes(draw(contents))
    elif kind == "name":
        put(root, draw(st.sampled_from(NAMES)), data)
    path.unlink() if kind in ("name", "gone") and path.is_file() else None


def listing(root: Path) -> dict[str, bytes | None]:
    """Everything below but the lock, which every attempt may make."""
    return {
        str(path.relative_to(root)): path.read_bytes() if path.is_file() else None
        for path in sorted(root.rglob("*"))
        if path.name != "lock"
    }


def is_a_sentence(error: Exception) -> bool:
    text = str(error)
    return len(text) > 20 and text[-1] == "." and (text[0].isupper() or text[0] in "/'\"")


def open_and_look(root: Path) -> None:
    """Open the store; if it opens, everything can be asked."""
    kit = Kit(root, **OPTIONS)
    before = listing(root)
    try:
        kit.open_only()
    except StoreError as error:
        assert is_a_sentence(error), error
        assert listing(root) == before, "nothing was changed"
        return
    store = kit.store
    kit.dispatch()
    for topic, queue_id in store.queues():
        for offset in range(store.min_offset(topic, queue_id), store.max_offset(topic, queue_id)):
            store.get(topic, queue_id, offset, 1)
        store.reader.offset_by_time(topic, queue_id, kit.now_ms)
    try:
        store.queries.query("TopicTest", "k1")
    except StoreError as error:
        assert is_a_sentence(error), error
    kit.close()


@SETTINGS
@given(data=st.data(), changes=st.integers(1, 4))
def test_a_store_with_any_change(
    template: Path, tmp_path_factory: pytest.TempPathFactory, data: st.DataObject, changes: int
) -> None:
    folder = tmp_path_factory.mktemp("any")
    root = folder / "store"
    shutil.copytree(template, root)
    for _ in range(changes):
        change(root, data.draw)
    open_and_look(root)
    shutil.rmtree(folder)


@SETTINGS
@given(files=st.dictionaries(st.sampled_from(NAMES), contents, max_size=8))
def test_any_files_at_all(
    tmp_path_factory: pytest.TempPathFactory, files: dict[str, bytes]
) -> None:
    folder = tmp_path_factory.mktemp("any")
    for name, data in files.items():
        put(folder / "store", name, data)
    (folder / "store").mkdir(exist_ok=True)
    open_and_look(folder / "store")
    shutil.rmtree(folder)


timer_files = st.fixed_dictionaries(
    {"timerwheel": contents, "config/timercheck": contents, "config/timermetrics": contents},
    optional={f"timerlog/{name}": contents for name in ("0" * 20, f"{5200:020d}", "x", "7")},
)


@SETTINGS
@given(files=timer_files)
def test_any_timer_files(
    template: Path, tmp_path_factory: pytest.TempPathFactory, files: dict[str, bytes]
) -> None:
    folder = tmp_path_factory.mktemp("any")
    root = folder / "store"
    shutil.copytree(template, root)
    for name, content in files.items():
        put(root, name, content)
    kit = Kit(root, **OPTIONS)
    kit.open_only()
    before = listing(root)
    timers = TimerStore(root, kit.store.config, Disk(), kit.store)
    try:
        timers.recover(kit.now_ms)
    except StoreError as error:
        assert is_a_sentence(error), error
        assert listing(root) == before
    timers.close()
    kit.close()
    shutil.rmtree(folder)


@SETTINGS
@given(data=st.one_of(st.binary(max_size=300), st.text(max_size=300).map(str.encode)))
def test_any_json(tmp_path_factory: pytest.TempPathFactory, data: bytes) -> None:
    path = tmp_path_factory.mktemp("json") / "topics.json"
    path.write_bytes(data)
    try:
        found = load(path)
        assert found is None or isinstance(found, dict)
    except ConfigFileError as error:
        assert is_a_sentence(error), error
        found = None
    # An unreadable file is renamed, so that it is not overwritten.
    kept = "topics.json.broken" if found is None else "topics.json"
    assert os.listdir(path.parent) == [kept]
    assert (path.parent / kept).read_bytes() == data
    shutil.rmtree(path.parent)
