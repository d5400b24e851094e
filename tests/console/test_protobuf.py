"""Bodies as protobuf with the message types of descriptor sets."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from google.protobuf import descriptor_pool, message_factory, timestamp_pb2
from google.protobuf.descriptor_pb2 import (
    FieldDescriptorProto,
    FileDescriptorProto,
    FileDescriptorSet,
)

import cometmq
from cometmq.cli.errors import CliError
from cometmq.console import descriptors
from cometmq.console.descriptors import BODY_BYTES_MAX, Descriptors, read
from cometmq.tests.console.browser import SIZES, chromium, opened, press, violations
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
    assert found.unknown_fields == 0
    assert types.decode("shop.Order.Line", b"\x0a\x01x\x98\x06\x01").unknown_fields == 1


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
        shown = console.get(f"{page}&as=protobuf&type=shop.Order")
        assert '"number": "17"' in told(shown)
        assert "<b>é" not in shown
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
