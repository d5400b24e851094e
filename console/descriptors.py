"""Bodies as protobuf: message types of descriptor sets, and bodies decoded as one of them.

A descriptor set is what `protoc --include_imports --descriptor_set_out=FILE` writes. It comes from
the operator, or from a browser (`body_types.py`). Bodies come from clients and are hostile: their
size is limited, and the parser limits their nesting.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from google.protobuf import (
    any_pb2,
    descriptor_pool,
    duration_pb2,
    empty_pb2,
    field_mask_pb2,
    json_format,
    message_factory,
    struct_pb2,
    timestamp_pb2,
    wrappers_pb2,
)
from google.protobuf.descriptor_pb2 import FileDescriptorProto, FileDescriptorSet
from google.protobuf.message import DecodeError
from google.protobuf.unknown_fields import UnknownFieldSet

from ..cli.errors import CliError, Exit
from .bodies import SHOWN_MAX
from .inputs import bad

#: Bytes of a descriptor set, and the number of sets.
SET_BYTES_MAX, SETS_MAX = 8 << 20, 32
#: Files of a descriptor set.
FILES_MAX = 10_000
#: Bytes of a body that is decoded: its fields as objects are many times larger.
BODY_BYTES_MAX = 1 << 20
_COMMON: tuple[Any, ...] = (
    *(any_pb2, duration_pb2, empty_pb2, field_mask_pb2, struct_pb2, timestamp_pb2, wrappers_pb2),
)
_NAME_SHOWN, _REASON_SHOWN = 80, 300


@dataclass(frozen=True, slots=True)
class Decoded:
    """A body as text in JSON, and what is not in it."""

    text: str
    #: Whether it is cut.
    is_cut: bool = False
    #: Fields of the outermost message that its type does not have.
    unknown_fields: int = 0


class Descriptors:
    """The message types by their full names."""

    def __init__(self, files: Iterable[FileDescriptorProto] = ()) -> None:
        """Raise TypeError for contradictory files, KeyError for a file that is missing."""
        self._pool = descriptor_pool.DescriptorPool()
        self.names: Sequence[str] = ()
        known = {one.name: one for one in files}
        added: set[str] = set()
        for name in known:
            self._add(name, known, added)
        self.names = sorted(
            name for file in known.values() for name in type_names(file.package, file.message_type)
        )

    def _add(self, name: str, known: dict[str, FileDescriptorProto], added: set[str]) -> None:
        """Add a file behind those that it imports."""
        if name in added:
            return
        added.add(name)
        file = known.get(name)
        if file is None:
            file = _common(name)
        for needed in file.dependency:
            self._add(needed, known, added)
        self._pool.Add(file)

    def decode(self, name: str, body: bytes) -> Decoded:
        """Decode a body as a message type. Raises CliError with the reason."""
        if len(body) > BODY_BYTES_MAX:
            raise bad(f"The body is larger than {BODY_BYTES_MAX >> 20} MiB: download it.")
        if name not in self.names:
            raise bad(f"The descriptor sets have no message type '{name[:_NAME_SHOWN]}'.")
        # A set may define protobuf's own types differently than the formatter expects them.
        wrong = (json_format.Error, AttributeError, LookupError, TypeError, ValueError)
        kind = message_factory.GetMessageClass(self._pool.FindMessageTypeByName(name))
        try:
            found: Any = kind.FromString(body)
            document = json_format.MessageToDict(
                found, preserving_proto_field_name=True, descriptor_pool=self._pool
            )
        except DecodeError:
            raise bad(f"The body is not a message of type {name}.") from None
        except (*wrong, RecursionError) as error:
            reason = str(error)[:_REASON_SHOWN]
            raise bad(f"The body cannot be shown as {name}: {reason}") from None
        text, is_cut = _start_of(document)
        return Decoded(text, is_cut, len(UnknownFieldSet(found)))


def _start_of(document: Mapping[str, Any]) -> tuple[str, bool]:
    """Return a document as JSON, as much as a page shows, and whether it is cut.

    The whole text of deeply nested messages is several hundred times as large as their bytes.
    """
    parts, length = [], 0
    for part in json.JSONEncoder(ensure_ascii=False, indent=2).iterencode(document):
        parts.append(part)
        length += len(part)
        if length > SHOWN_MAX:
            break
    return "".join(parts)[:SHOWN_MAX], length > SHOWN_MAX


def _common(name: str) -> FileDescriptorProto:
    """Return a file of protobuf itself, which descriptor sets may leave out. Raises KeyError."""
    for module in _COMMON:
        if name == module.DESCRIPTOR.name:
            file = FileDescriptorProto()
            module.DESCRIPTOR.CopyToProto(file)
            return file
    raise KeyError(name)


def read(paths: Sequence[Path]) -> Descriptors:
    """Read descriptor sets. Raises CliError."""
    if len(paths) > SETS_MAX:
        raise CliError(f"Give at most {SETS_MAX} descriptor sets.", Exit.USAGE)
    files: list[FileDescriptorProto] = []
    for path in paths:
        files += _read(path)
    return built(files)


def built(files: Iterable[FileDescriptorProto]) -> Descriptors:
    """Return the types of files that descriptor sets have. Raises CliError."""
    try:
        return Descriptors(files)
    except KeyError as error:
        name = str(error.args[0])[:_NAME_SHOWN]
        raise bad(
            f"No descriptor set has {name}, which is imported: use protoc --include_imports."
        ) from None
    except RecursionError:
        raise bad("The imports of the descriptor sets are nested too deeply.") from None
    except TypeError as error:
        reason = str(error)[:_REASON_SHOWN]
        raise bad(f"The descriptor sets are not consistent: {reason}") from None


def _read(path: Path) -> list[FileDescriptorProto]:
    try:
        if path.stat().st_size > SET_BYTES_MAX:
            text = f"The descriptor set {path} is larger than {SET_BYTES_MAX >> 20} MiB."
            raise CliError(text, Exit.USAGE)
        return parsed(str(path), path.read_bytes())
    except OSError as error:
        raise CliError(f"Cannot read {path}: {error.strerror}.", Exit.USAGE) from None


def parsed(name: str, data: bytes) -> list[FileDescriptorProto]:
    """Return the files of a descriptor set; errors name it. Raises CliError."""
    try:
        found = FileDescriptorSet.FromString(data).file
    except DecodeError:
        found = FileDescriptorSet().file
    if len(found) > FILES_MAX:
        raise bad(f"{name} has more than {FILES_MAX} files.")
    files = list(found)
    if not files or not all(one.name for one in files):
        raise bad(
            f"{name} is not a descriptor set. Make one: protoc --include_imports"
            " --descriptor_set_out=FILE"
        )
    return files


def type_names(scope: str, messages: Iterable[Any]) -> Iterable[str]:
    """Yield the full names of message types, also of those inside others."""
    for one in messages:
        name = f"{scope}.{one.name}" if scope else one.name
        if not one.options.map_entry:
            yield name
            yield from type_names(name, one.nested_type)
