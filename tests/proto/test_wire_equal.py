"""Our `apache.rocketmq.v2` equals the official client's on the wire: names, numbers, types, labels,
presence, oneofs, enum values and services. What we have beyond it is listed here, and is exactly
what the protocol added after its release 2.1.2 (docs/formats/grpc-api.md, sections 3 and 14).
"""

import base64
import subprocess
import sys
from dataclasses import dataclass, field

import pytest
from google.protobuf import descriptor_pb2

from cometmq.proto import admin_pb2, definition_pb2, service_pb2

PACKAGE = ".apache.rocketmq.v2"

DUMP = """
import base64
from rocketmq.grpc_protocol import admin_pb2, definition_pb2, service_pb2
for module in (definition_pb2, service_pb2, admin_pb2):
    print("file", base64.b64encode(module.DESCRIPTOR.serialized_pb).decode())
"""

NEW_FIELDS = {f"{PACKAGE}.Settings": {"client_properties"}}
NEW_VALUES = {f"{PACKAGE}.Code": {"INVALID_CLIENT_PROPERTIES"}}
NEW_ENUMS = {f"{PACKAGE}.MessageModel", f"{PACKAGE}.GetTopicRouteRequest.NetworkType"}


@dataclass
class Shape:
    """What the wire can see of a set of files. File names and comments are not in it."""

    messages: dict[str, dict[str, tuple[object, ...]]] = field(default_factory=dict)
    enums: dict[str, dict[str, int]] = field(default_factory=dict)
    services: dict[str, dict[str, tuple[object, ...]]] = field(default_factory=dict)

    def add_file(self, file: descriptor_pb2.FileDescriptorProto) -> None:
        assert file.syntax == "proto3"
        scope = f".{file.package}"
        for message in file.message_type:
            self.add_message(scope, message)
        for enum in file.enum_type:
            self.add_enum(scope, enum)
        for service in file.service:
            self.services[f"{scope}.{service.name}"] = {
                method.name: (
                    method.input_type,
                    method.output_type,
                    method.client_streaming,
                    method.server_streaming,
                )
                for method in service.method
            }

    def add_enum(self, scope: str, enum: descriptor_pb2.EnumDescriptorProto) -> None:
        self.enums[f"{scope}.{enum.name}"] = {value.name: value.number for value in enum.value}

    def add_message(self, scope: str, message: descriptor_pb2.DescriptorProto) -> None:
        name = f"{scope}.{message.name}"
        self.messages[name] = {
            each.name: (
                each.number,
                each.type,
                each.type_name,
                each.label,
                each.proto3_optional,
                message.oneof_decl[each.oneof_index].name if each.HasField("oneof_index") else None,
                each.json_name,
                message.options.map_entry,
            )
            for each in message.field
        }
        for inner in message.nested_type:
            self.add_message(name, inner)
        for enum in message.enum_type:
            self.add_enum(name, enum)


def shape_of(serialized: list[bytes]) -> Shape:
    shape = Shape()
    for data in serialized:
        shape.add_file(descriptor_pb2.FileDescriptorProto.FromString(data))
    return shape


@pytest.fixture(scope="module")
def official() -> Shape:
    done = subprocess.run([sys.executable, "-c", DUMP], capture_output=True, text=True, check=True)
    lines = [line.split() for line in done.stdout.splitlines() if line.startswith("file ")]
    return shape_of([base64.b64decode(data) for _, data in lines])


@pytest.fixture(scope="module")
def ours() -> Shape:
    modules = (definition_pb2, service_pb2, admin_pb2)
    return shape_of([module.DESCRIPTOR.serialized_pb for module in modules])


def test_the_official_client_is_the_release_that_we_compare_with(official: Shape) -> None:
    entries = [name for name in official.messages if name.endswith("Entry")]
    maps = [name for name in entries if set(official.messages[name]) == {"key", "value"}]
    fields = sum(len(fields) for name, fields in official.messages.items() if name not in maps)
    assert len(official.messages) - len(maps) == 67
    assert fields == 208
    assert len(official.enums) == 15
    assert sum(len(values) for values in official.enums.values()) == 120
    assert {name: len(methods) for name, methods in official.services.items()} == {
        f"{PACKAGE}.MessagingService": 17,
        f"{PACKAGE}.Admin": 1,
    }


def test_every_official_message_exists_unchanged(official: Shape, ours: Shape) -> None:
    for name, fields in official.messages.items():
        mine = dict(ours.messages[name])
        for added in NEW_FIELDS.get(name, ()):
            del mine[added]
        assert mine == fields, name


def test_every_official_enum_exists_unchanged(official: Shape, ours: Shape) -> None:
    for name, values in official.enums.items():
        mine = dict(ours.enums[name])
        for added in NEW_VALUES.get(name, ()):
            del mine[added]
        assert mine == values, name


def test_every_official_service_exists_unchanged(official: Shape, ours: Shape) -> None:
    messaging = f"{PACKAGE}.MessagingService"
    assert ours.services.keys() == official.services.keys()
    assert ours.services[messaging] == official.services[messaging]
    admin = f"{PACKAGE}.Admin"
    assert ours.services[admin].items() >= official.services[admin].items()


def test_additions_to_the_official_protocol_are_the_newer_control_plane(
    official: Shape, ours: Shape
) -> None:
    control = descriptor_pb2.FileDescriptorProto.FromString(admin_pb2.DESCRIPTOR.serialized_pb)
    inside = {f"{PACKAGE}.{message.name}" for message in control.message_type}
    extra = ours.messages.keys() - official.messages.keys()
    top = {".".join(name.split(".")[:5]) for name in extra}
    assert top - inside == {f"{PACKAGE}.Settings"}  # the entry type of its new map
    assert ours.enums.keys() - official.enums.keys() == NEW_ENUMS


def test_the_newer_control_plane_keeps_its_peculiarities(ours: Shape) -> None:
    methods = ours.services[f"{PACKAGE}.Admin"]
    assert len(methods) == 16
    assert methods["QueryMessage"][:2] == (
        f"{PACKAGE}.ListMessageRequest",
        f"{PACKAGE}.ListMessageResponse",
    )
    assert "liteTopic" in ours.messages[f"{PACKAGE}.ListConsumerConnectionRequest"]
    request = ours.messages[f"{PACKAGE}.ListMessageRequest"]
    keys = {name: each[0] for name, each in request.items() if each[5] == "search_key"}
    assert keys == {"message_id": 6, "message_key": 7, "subscription": 8, "lite_topic": 14}
    assert ours.enums[f"{PACKAGE}.GetTopicRouteRequest.NetworkType"] == {
        "INTERNAL": 0,
        "INTERNET": 1,
        "INTRANET": 2,
    }
    for name, (request_type, response_type, *streams) in methods.items():
        assert streams == [False, False], name
        if name not in ("ChangeLogLevel", "GetProxyRuntimeStats"):
            assert ours.messages[str(request_type)]["deployment_name"][0] == 1
        if name != "ChangeLogLevel":
            assert ours.messages[str(response_type)]["status"][0] == 1
