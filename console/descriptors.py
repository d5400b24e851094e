"""Bodies as protobuf: message types of descriptor sets, and bodies decoded as one of them.

A descriptor set is what `protoc --include_imports --descriptor_set_out=FILE` writes. It comes from
the operator, or from a browser (`body_types.py`). Bodies come from clients and are hostile: their
size is limited, the parser limits their nesting, and only their first values become JSON.
"""

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
from google.protobuf.message import DecodeError, Message

from ..operations import words
from ..operations.errors import CliError, Exit
from . import bodies
from .inputs import bad

#: Bytes of a descriptor set, and the number of sets.
SET_BYTES_MAX, SETS_MAX = 8 << 20, 32
#: Files of a descriptor set.
FILES_MAX = 10_000
#: Bytes of a body that is decoded: its fields as objects are many times larger, and no other thread
#: runs while the parser makes them, up to 30 ms.
BODY_BYTES_MAX = 512 << 10
#: Values of a body that are shown, about as many as a page has room for. A body has up to 250,000,
#: which would take a second.
VALUES_MAX = 4_000
# The content of an `Any` is parsed separately; each 1,024 bytes of it count as one value.
_ANY, _ANY_BYTES = any_pb2.Any.DESCRIPTOR.full_name, 1 << 10
_COMMON: tuple[Any, ...] = (
    *(any_pb2, duration_pb2, empty_pb2, field_mask_pb2, struct_pb2, timestamp_pb2, wrappers_pb2),
)
_NAME_SHOWN, _REASON_SHOWN = 80, 300


@dataclass(frozen=True, slots=True)
class Decoded:
    """A body as text in JSON, and what is not in it."""

    text: str
    #: Whether the text is cut, or has only the first `VALUES_MAX` values.
    is_cut: bool = False
    has_more_values: bool = False
    #: Bytes of fields that the type does not have.
    unknown_bytes: int = 0


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
            raise bad(f"The body is larger than {words.size(BODY_BYTES_MAX)}: download it.")
        if name not in self.names:
            raise bad(f"The descriptor sets have no message type '{name[:_NAME_SHOWN]}'.")
        # A set may define protobuf's own types differently than the formatter expects them.
        wrong = (json_format.Error, AttributeError, LookupError, TypeError, ValueError)
        kind = message_factory.GetMessageClass(self._pool.FindMessageTypeByName(name))
        try:
            found: Any = kind.FromString(body)
            first = _First(self._pool)
            first.fill(part := kind(), found)
            document = json_format.MessageToDict(
                part, preserving_proto_field_name=True, descriptor_pool=self._pool
            )
        except DecodeError:
            raise bad(f"The body is not a message of type {name}.") from None
        except (*wrong, RecursionError) as error:
            reason = str(error)[:_REASON_SHOWN]
            raise bad(f"The body cannot be shown as {name}: {reason}") from None
        text, is_cut = bodies.start_of(document)
        return Decoded(text, is_cut, first.is_cut, _unknown_bytes(found))


class _First:
    """Copies the first values of a message, in the order of its fields' numbers."""

    def __init__(self, pool: descriptor_pool.DescriptorPool) -> None:
        self._pool = pool
        self._left = VALUES_MAX
        self.is_cut = False

    def fill(self, target: Any, source: Any) -> None:
        """Copy to an empty message of the same type."""
        if source.DESCRIPTOR.full_name == _ANY and source.type_url:
            self._fill_any(target, source)
            return
        for field, value in source.ListFields():
            own = target.Extensions[field] if field.is_extension else getattr(target, field.name)
            if field.is_repeated:
                self._fill_repeated(own, value)
            elif not self._takes():
                return
            elif field.message_type is not None:
                own.SetInParent()
                self.fill(own, value)
            elif field.is_extension:
                target.Extensions[field] = value
            else:
                setattr(target, field.name, value)

    def _fill_repeated(self, target: Any, source: Any) -> None:
        """Copy a list or a map."""
        is_map = isinstance(source, Mapping)
        for one in source:
            if not self._takes():
                return
            value = source[one] if is_map else one
            if isinstance(value, Message):
                self.fill(target[one] if is_map else target.add(), value)
            elif is_map:
                target[one] = value
            else:
                target.append(value)

    def _fill_any(self, target: Any, source: Any) -> None:
        """Copy the first values of the content. Raises KeyError for an unknown type of it."""
        target.type_url = source.type_url
        if self._takes(len(source.value) // _ANY_BYTES):
            name = source.type_url.rpartition("/")[2]
            kind = message_factory.GetMessageClass(self._pool.FindMessageTypeByName(name))
            self.fill(part := kind(), kind.FromString(source.value))
            target.value = part.SerializePartialToString()

    def _takes(self, values: int = 1) -> bool:
        """Count `values` values; return False if the limit was reached before."""
        self.is_cut |= self._left <= 0
        self._left -= values
        return not self.is_cut


def _unknown_bytes(message: Any) -> int:
    """Return the bytes of the fields that a message's type does not have, and remove them."""
    size = int(message.ByteSize())
    message.DiscardUnknownFields()
    return size - int(message.ByteSize())


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
