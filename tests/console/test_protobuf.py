"""Bodies as protobuf with the message types of descriptor sets."""

from __future__ import annotations

import json
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from google.protobuf import any_pb2, descriptor_pool, message_factory, timestamp_pb2
from google.protobuf.descriptor_pb2 import (
    FieldDescriptorProto,
    FileDescriptorProto,
    FileDescriptorSet,
)

import cometmq
from cometmq.console import descriptors
from cometmq.console.descriptors import BODY_BYTES_MAX, VALUES_MAX, Descriptors, built, read
from cometmq.operations.errors import CliError
from cometmq.proto.varint import encode_varint
from cometmq.tests.console.browser import SIZES, chromium, opened, press, shown, violations
from cometmq.tests.console.served import serve, told
from cometmq.tests.harness.cluster import Cluster

FIELD = FieldDescriptorProto


def order_file() -> FileDescriptorProto:
    """Return `shop.proto` with `shop.Order` and `shop.Order.Line`."""
    file = FileDescriptorProto(name="shop.proto", package="shop", syntax="proto3")
    file.dependency.append("google/protobuf/timestamp.proto")
    order = file.message_type.add(name="Order")
    order.field.add(name="number", number=1, type=FIELD.TYPE_INT64, label=FIELD.LABEL_OPTIONAL)
    order.field.add(name="customer", number=2, type=FIELD.TYPE_STRING, label=FIELD.LABEL_OPTIONAL)
    at = order.field.add(name="at", number=3, type=FIELD.TYPE_MESSAGE, label=FIELD.LABEL_OPTIONAL)
    at.type_name = ".google.protobuf.Timestamp"
    line = order.nested_type.add(name="Line")
    line.field.add(name="sku", number=1, type=FIELD.TYPE_STRING, label=FIELD.LABEL_OPTIONAL)
    return file


def order_body() -> bytes:
    pool = descriptor_pool.DescriptorPool()
    stamp = FileDescriptorProto()
    timestamp_pb2.DESCRIPTOR.CopyToProto(stamp)
    pool.Add(stamp)
    pool.Add(order_file())
    kind: Any = message_factory.GetMessageClass(pool.FindMessageTypeByName("shop.Order"))
    order = kind(number=17, customer="<b>é</b>")
    order.at.seconds = 1_700_000_000
    return bytes(order.SerializeToString())


def written(folder: Path, *files: FileDescriptorProto) -> Path:
    path = folder / "shop.pb"
    path.write_bytes(FileDescriptorSet(file=files).SerializeToString())
    return path


def test_a_body_is_decoded_as_a_type_with_its_imports(tmp_path: Path) -> None:
    types = read([written(tmp_path, order_file())])
    assert list(types.names) == ["shop.Order", "shop.Order.Line"]
    found = types.decode("shop.Order", order_body())
    assert '"number": "17"' in found.text
    assert "2023-11-14T22:13:20Z" in found.text
    assert (found.unknown_bytes, found.has_more_values) == (0, False)
    assert types.decode("shop.Order.Line", b"\x0a\x01x\x98\x06\x01").unknown_bytes == 3


@pytest.mark.parametrize(
    ("name", "body", "sentence"),
    [
        ("shop.Order", b"\xff\xff", "is not a message of type"),
        ("shop.Nothing", b"", "have no message type"),
        ("shop.Order", b"\x12\x02\xff\xfe", "is not a message of type"),
        ("shop.Order", b"x" * (BODY_BYTES_MAX + 1), "larger than"),
    ],
)
def test_a_body_of_another_type_is_refused_in_words(
    tmp_path: Path, name: str, body: bytes, sentence: str
) -> None:
    types = read([written(tmp_path, order_file())])
    with pytest.raises(CliError, match=sentence):
        types.decode(name, body)


def tree_file() -> FileDescriptorProto:
    """Return a type with a field of each kind that a body can fill with many values."""
    file = FileDescriptorProto(name="tree.proto", package="tree", syntax="proto2")
    file.dependency.append("google/protobuf/any.proto")
    tree = file.message_type.add(name="Tree")
    for number, (name, kind, label, type_name) in enumerate(
        (
            ("trees", FIELD.TYPE_MESSAGE, FIELD.LABEL_REPEATED, ".tree.Tree"),
            ("numbers", FIELD.TYPE_INT64, FIELD.LABEL_REPEATED, None),
            ("texts", FIELD.TYPE_STRING, FIELD.LABEL_REPEATED, None),
            ("by_number", FIELD.TYPE_MESSAGE, FIELD.LABEL_REPEATED, ".tree.Tree.ByNumberEntry"),
            ("by_text", FIELD.TYPE_MESSAGE, FIELD.LABEL_REPEATED, ".tree.Tree.ByTextEntry"),
            ("any", FIELD.TYPE_MESSAGE, FIELD.LABEL_OPTIONAL, ".google.protobuf.Any"),
            ("one", FIELD.TYPE_MESSAGE, FIELD.LABEL_OPTIONAL, ".tree.Tree"),
            ("zero", FIELD.TYPE_INT32, FIELD.LABEL_OPTIONAL, None),
        ),
        1,
    ):
        tree.field.add(name=name, number=number, type=kind, label=label, type_name=type_name)
    for name, key in (("ByNumberEntry", FIELD.TYPE_INT32), ("ByTextEntry", FIELD.TYPE_STRING)):
        entry = tree.nested_type.add(name=name)
        entry.options.map_entry = True
        entry.field.add(name="key", number=1, type=key, label=FIELD.LABEL_OPTIONAL)
        value = entry.field.add(name="value", number=2, label=FIELD.LABEL_OPTIONAL)
        value.type = FIELD.TYPE_INT32
        if key == FIELD.TYPE_STRING:
            value.type, value.type_name = FIELD.TYPE_MESSAGE, ".tree.Tree"
    tree.extension_range.add(start=100, end=200)
    for number, name, label in (
        (100, "more", FIELD.LABEL_REPEATED),
        (101, "last", FIELD.LABEL_OPTIONAL),
    ):
        file.extension.add(
            name=name, number=number, type=FIELD.TYPE_INT32, label=label, extendee=".tree.Tree"
        )
    return file


def tree() -> Any:
    """Return the class of the messages."""
    pool = descriptor_pool.DescriptorPool()
    common = FileDescriptorProto()
    any_pb2.DESCRIPTOR.CopyToProto(common)
    pool.Add(common)
    pool.Add(tree_file())
    return message_factory.GetMessageClass(pool.FindMessageTypeByName("tree.Tree"))


def inside(levels: int, body: bytes, number: int) -> bytes:
    """Return a body inside messages of a field."""
    for _ in range(levels):
        body = encode_varint(number << 3 | 2) + encode_varint(len(body)) + body
    return body


def in_any(levels: int, body: bytes) -> bytes:
    """Return a body inside messages of any type."""
    for _ in range(levels):
        content = any_pb2.Any(type_url="x/tree.Tree", value=body)
        body = inside(1, content.SerializeToString(), 6)
    return body


ROOM = BODY_BYTES_MAX - 1_000
#: As many values as a body can have, in each place.
HOSTILE = {
    "messages": b"\x0a\x00" * (ROOM // 2),
    "messages inside": inside(90, b"\x0a\x00" * (ROOM // 2), 1),
    "numbers": inside(1, bytes(ROOM), 2),
    "texts": b"\x1a\x00" * (ROOM // 2),
    "map": b"".join(inside(1, b"\x08" + encode_varint(n), 4) for n in range(ROOM // 6)),
    "map of messages": b"".join(inside(1, b"\x0a\x03%03x" % n, 5) for n in range(4_096)) * 15,
    "any": in_any(1, b"\x0a\x00" * (ROOM // 2)),
    "any inside": in_any(300, b"\x0a\x00" * (ROOM // 3)),
    "unknown": b"\x98\x06\x01" * (ROOM // 3),
    "unknown inside": b"\x0a\x03\x98\x06\x01" * (ROOM // 5),
}
#: As in tests/hostile: the processor's caches are shared with other tests, and a collection of
#: garbage may come in between; the former times were several times as long.
MARGIN, RUNS = 2.0, 3
DECODE_S, HELD_S = 0.1, 0.05


def decoding(types: Descriptors, body: bytes) -> tuple[float, float]:
    """Return the processor time of decoding a body in a thread, and the longest part of it in which
    no other thread ran."""
    with ThreadPoolExecutor(1) as worker:
        longest_s, before_s = 0.0, (began_s := time.process_time())
        done = worker.submit(types.decode, "tree.Tree", body)
        while not done.done():
            time.sleep(0.001)
            now_s = time.process_time()
            longest_s, before_s = max(longest_s, now_s - before_s), now_s
        found = done.result()
        assert found.has_more_values or found.unknown_bytes > BODY_BYTES_MAX / 2
        return before_s - began_s, longest_s


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_body_takes_little_time_and_lets_others_run(name: str) -> None:
    types, body = built([tree_file()]), HOSTILE[name]
    assert BODY_BYTES_MAX / 4 < len(body) <= BODY_BYTES_MAX
    found = []
    for _ in range(RUNS):
        found.append(decoding(types, body))
        if found[-1][0] <= MARGIN * DECODE_S and found[-1][1] <= MARGIN * HELD_S:
            return
    pytest.fail(f"decoding took {found} s, the second part of it without a pause")


def test_a_body_of_few_values_is_shown_whole() -> None:
    kind = tree()
    body = kind(numbers=[1, 2], texts=["a"], zero=0, by_number={3: 4}, one=kind())
    body.trees.add().texts.append("b")
    body.by_text["k"].numbers.append(5)
    body.any.type_url, body.any.value = "x/tree.Tree", kind(texts=["c"]).SerializeToString()
    body.MergeFromString(inside(1, b"\x07", 100) + b"\xa8\x06\x08")
    types = built([tree_file()])
    found = types.decode("tree.Tree", body.SerializeToString())
    assert json.loads(found.text) == {
        "trees": [{"texts": ["b"]}],
        "numbers": ["1", "2"],
        "texts": ["a"],
        "by_number": {"3": 4},
        "by_text": {"k": {"numbers": ["5"]}},
        "any": {"@type": "x/tree.Tree", "texts": ["c"]},
        "one": {},
        "zero": 0,
        "[tree.more]": [7],
        "[tree.last]": 8,
    }
    assert (found.is_cut, found.has_more_values, found.unknown_bytes) == (False, False, 0)
    for values, has_more in ((VALUES_MAX, False), (VALUES_MAX + 1, True)):
        found = types.decode("tree.Tree", b"\x1a\x00" * values)
        assert (found.has_more_values, len(json.loads(found.text)["texts"])) == (
            has_more,
            VALUES_MAX,
        )


def test_an_any_of_an_unknown_type_is_refused_in_words() -> None:
    content = any_pb2.Any(type_url="x/shop.Nothing", value=b"x").SerializeToString()
    with pytest.raises(CliError, match=r"cannot be shown as tree\.Tree: .*shop\.Nothing"):
        built([tree_file()]).decode("tree.Tree", inside(1, content, 6))


def test_a_file_that_is_no_descriptor_set_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken = tmp_path / "broken.pb"
    for content in (b"", b"\xff\xff", b"message Order {}"):
        broken.write_bytes(content)
        with pytest.raises(CliError, match="is not a descriptor set"):
            read([broken])
    with pytest.raises(CliError, match="Cannot read"):
        read([tmp_path / "nothing"])
    lacking = order_file()
    lacking.dependency.append("other.proto")
    with pytest.raises(CliError, match=r"No descriptor set has other\.proto"):
        read([written(tmp_path, lacking)])
    monkeypatch.setattr(descriptors, "SET_BYTES_MAX", 10)
    with pytest.raises(CliError, match="larger than"):
        read([written(tmp_path, order_file())])


def test_without_descriptor_sets_there_is_no_type() -> None:
    assert list(Descriptors().names) == []


def test_the_page_of_a_message_shows_its_body_as_the_chosen_type(
    shared_cluster: Cluster, tmp_path: Path
) -> None:
    shared_cluster.create_topic("binary", queues=1)
    with cometmq.sync.Producer(shared_cluster.endpoints, topics=["binary"]) as producer:
        producer.send("binary", order_body())
    path = written(tmp_path, order_file())
    with serve(tmp_path, shared_cluster.endpoints, "--descriptors", str(path)) as console:
        page = "/message?topic=binary&queue=0&offset=0"
        assert "Protobuf" in told(console.get(page))
        assert "Choose one of 2 message types" in told(console.get(f"{page}&as=protobuf"))
        order = console.get(f"{page}&as=protobuf&type=shop.Order")
        assert '"number": "17"' in told(order)
        assert "<b>é" not in order
        wrong = told(console.get(f"{page}&as=protobuf&type=shop.Nothing"))
        assert "have no message type" in wrong
        with chromium() as browser, opened(browser, SIZES[0], "dark") as (tab, errors):
            tab.goto(console.url + page)
            press(tab, "Protobuf")
            tab.fill("[name=type]", "shop.Order")
            press(tab, "Decode")
            tab.wait_for_selector('pre.body:has-text(\'"number": "17"\')')
            assert "<b>é</b>" in tab.inner_text("pre.body"), "as text, not as markup"
            assert (violations(tab), errors) == ([], [])


def test_a_browser_chooses_the_form_of_bodies_once(shared_cluster: Cluster, tmp_path: Path) -> None:
    shared_cluster.create_topic("mixed-bodies", queues=1)
    with cometmq.sync.Producer(shared_cluster.endpoints, topics=["mixed-bodies"]) as producer:
        for body in (order_body(), order_body(), b'{"a": 1}'):
            producer.send("mixed-bodies", body)
    path = written(tmp_path, order_file())
    with (
        serve(tmp_path, shared_cluster.endpoints, "--descriptors", str(path)) as console,
        chromium() as browser,
        opened(browser, SIZES[0], "light") as (tab, errors),
    ):
        first, second, third = (
            f"{console.url}/message?topic=mixed-bodies&queue=0&offset={n}" for n in range(3)
        )

        def form() -> str:
            return tab.inner_text(".tabs [aria-current]")

        tab.goto(f"{first}&as=protobuf&type=shop.Nothing")
        tab.goto(second)
        assert form() == "Hex", "a choice that shows nothing is not kept"
        tab.goto(f"{first}&as=protobuf&type=shop.Order")
        tab.goto(second)
        assert form() == "Protobuf"
        assert '"number": "17"' in tab.inner_text("pre.body")
        tab.goto(third)
        assert form() == "JSON"
        shown(tab, "This body is not shown as shop.Order, the last choice.")
        press(tab, "Text")
        tab.goto(second)
        assert form() == "Hex", "it has no text"
        press(tab, "Protobuf")
        assert '"number": "17"' in tab.inner_text("pre.body"), "with the last type"
        tab.goto(f"{second}&as=hex")
        assert form() == "Hex", "the form of a URL comes first"
        assert errors == []
