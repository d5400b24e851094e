"""Nodes of different versions run together: today's protocols contain those of every release.

`released/VERSION.json.gz` (written by `scripts/record_protocol`) has the descriptors of a release
and a message of each kind with every field set: frames of replication, registrations, calls of
operators, and bodies of the metadata records in the log. `released/VERSION-store.tar.gz` is a store
directory that the release wrote. That a cluster of two versions serves while its nodes are replaced
is the subject of `tests/drills/test_mixed_versions.py`.
"""

from __future__ import annotations

import base64
import gzip
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from google.protobuf import descriptor_pb2, descriptor_pool, json_format, message_factory

from cometmq.proto import v1

RELEASED = sorted((Path(__file__).parent / "released").glob("*.json.gz"))
#: What must stay: the bytes on the wire and the names in documents.
FIELD = ("name", "type", "label", "type_name", "proto3_optional", "oneof_index")


def recorded(path: Path) -> tuple[descriptor_pb2.FileDescriptorSet, dict[str, list[bytes]]]:
    document = json.loads(gzip.decompress(path.read_bytes()))
    files = descriptor_pb2.FileDescriptorSet.FromString(base64.b64decode(document["descriptors"]))
    messages = {
        name: [base64.b64decode(text) for text in texts]
        for name, texts in document["messages"].items()
    }
    return files, messages


def today() -> descriptor_pb2.FileDescriptorSet:
    found = descriptor_pb2.FileDescriptorSet()
    files = {
        t.DESCRIPTOR.file.name: t.DESCRIPTOR.file
        for t in vars(v1).values()
        if isinstance(t, type) and hasattr(t, "DESCRIPTOR")
    }
    for file in files.values():
        file.CopyToProto(found.file.add())
    return found


def changes(
    before: descriptor_pb2.FileDescriptorSet, after: descriptor_pb2.FileDescriptorSet
) -> list[str]:
    """Return what an old node would not understand, or understand differently."""
    old, new = _parts(before), _parts(after)
    found = []
    for name, part in old.items():
        if name not in new:
            found.append(f"{name} is missing")
        elif part != new[name]:
            found.append(f"{name} was {part}, is {new[name]}")
    return found


def _parts(files: descriptor_pb2.FileDescriptorSet) -> dict[str, Any]:
    parts: dict[str, Any] = {}
    for file in files.file:
        for message in file.message_type:
            parts.update(_of_message(f"{file.package}.{message.name}", message))
        for enum in file.enum_type:
            parts.update(_of_enum(f"{file.package}.{enum.name}", enum))
        for service in file.service:
            for method in service.method:
                parts[f"{service.name}.{method.name}"] = (
                    *(method.input_type, method.output_type),
                    *(method.client_streaming, method.server_streaming),
                )
    return parts


def _of_message(name: str, message: descriptor_pb2.DescriptorProto) -> Iterator[tuple[str, Any]]:
    yield name, "message"
    for field in message.field:
        values = {key: getattr(field, key) for key in FIELD}
        if field.HasField("oneof_index"):
            values["oneof_index"] = message.oneof_decl[field.oneof_index].name
        yield f"{name}, field {field.number}", values
    for inner in message.nested_type:
        yield from _of_message(f"{name}.{inner.name}", inner)
    for enum in message.enum_type:
        yield from _of_enum(f"{name}.{enum.name}", enum)


def _of_enum(name: str, enum: descriptor_pb2.EnumDescriptorProto) -> Iterator[tuple[str, Any]]:
    for value in enum.value:
        yield f"{name}, value {value.number}", value.name


@pytest.mark.parametrize("path", RELEASED, ids=lambda path: path.name)
def test_messages_and_calls_of_a_release_are_unchanged(path: Path) -> None:
    files, _ = recorded(path)
    assert changes(files, today()) == [], "only new fields, messages and calls may be added"


@pytest.mark.parametrize("path", RELEASED, ids=lambda path: path.name)
def test_every_message_of_a_release_is_read_and_written_back(path: Path) -> None:
    files, messages = recorded(path)
    pool = descriptor_pool.DescriptorPool()
    for file in sorted(files.file, key=lambda one: len(one.dependency)):
        pool.Add(file)
    for name, texts in messages.items():
        old_class = message_factory.GetMessageClass(pool.FindMessageTypeByName(name))
        new_class = getattr(v1, name.rpartition(".")[2])
        for data in texts:
            old, new = old_class.FromString(data), new_class.FromString(data)
            assert old_class.FromString(new.SerializeToString()) == old, name
            assert json_format.MessageToDict(new) == json_format.MessageToDict(old), name


def test_a_change_that_an_old_node_misreads_is_found() -> None:
    before = today()
    for name, value, reason in (
        ("number", 900, "field 1 is missing"),
        ("type", 12, "field 1 was "),
        ("name", "other", "field 1 was "),
    ):
        after = descriptor_pb2.FileDescriptorSet()
        after.CopyFrom(before)
        file = next(file for file in after.file if file.name.endswith("ha.proto"))
        chunk = next(message for message in file.message_type if message.name == "Chunk")
        setattr(chunk.field[0], name, value)
        assert any(reason in text for text in changes(before, after))
        chunk.name = "Other"
        assert "cometmq.v1.Chunk is missing" in changes(before, after)
    added = descriptor_pb2.FileDescriptorSet()
    added.CopyFrom(before)
    added.file[0].message_type[0].field.add(name="more", number=901)
    assert changes(before, added) == []
