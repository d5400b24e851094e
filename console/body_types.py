"""The message types that a browser can show bodies as: those of the operator and those of its own.

A browser uploads one descriptor set, which changes what this browser shows and nothing else. The
process keeps the bytes of the set under a random id, which the browser has in a cookie. Such sets
are hostile: their bytes and types are limited, and only one at a time is in memory as types, which
take forty times the bytes. A full store refuses another set instead of dropping one that another
user works with.
"""

import secrets
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace

from google.protobuf.descriptor_pb2 import FileDescriptorProto

from ..operations.errors import CliError
from ..operations.words import number, size
from .descriptors import Decoded, Descriptors, built, parsed, type_names
from .inputs import bad
from .language import said

#: Bytes of an uploaded set; the operator's may be larger.
UPLOAD_BYTES_MAX = 512 << 10
#: Sets of all browsers.
KEPT_MAX = 32
#: A set is forgotten this long after its last use.
KEPT_S = 3_600
#: Types of an uploaded set: the page lists them.
TYPES_MAX = 5_000
#: Characters of the full name of a type, as of the page's input.
NAME_MAX = 512
_FILE_NAME_SHOWN = 80
_ID_BYTES = 32
_NS = 1_000_000_000


@dataclass(frozen=True, slots=True)
class Kept:
    """The descriptor set of one browser."""

    file_name: str
    data: bytes
    used_s: float


@dataclass(frozen=True, slots=True)
class Offered:
    """The types that a browser has, and a body as one of them."""

    #: The full names of all types.
    names: Sequence[str]
    #: The browser's own set, and the number of its types; None without one.
    kept: Kept | None
    kept_types: int
    #: The body, or why it cannot be shown; neither if no type is chosen.
    decoded: Decoded | None = None
    refusal: str = ""


class BodyTypes:
    """The types of the operator, and the descriptor set of each browser."""

    def __init__(self, shared: Descriptors, steady_ns: Callable[[], int]) -> None:
        """`shared` are the operator's types, which every browser is offered."""
        self._shared = shared
        self._steady_ns = steady_ns
        self._kept: dict[str, Kept] = {}
        self._lock = threading.Lock()
        # Each thread would keep the memory of the largest set and body that it has seen.
        self._worker = ThreadPoolExecutor(1, "body-types")

    def keep(self, previous: str, file_name: str, data: bytes) -> str:
        """Keep a set in place of the browser's previous one; return its id. Raises CliError.

        The id is new each time: another client cannot choose the id of a browser.
        """
        shown = file_name[:_FILE_NAME_SHOWN]
        if not data:
            raise bad("The file is empty.") if shown else bad("Choose a file.")
        if len(data) > UPLOAD_BYTES_MAX:
            raise bad(TOO_LARGE)
        if refusal := self._worker.submit(_refusal, shown, data).result():
            raise bad(refusal)
        with self._lock:
            self._expire()
            if len(self._kept.keys() - {previous}) >= KEPT_MAX:
                raise CliError(
                    said(
                        "The console keeps at most {} uploaded descriptor sets, and "
                        "forgets each {} minutes after its last use: try again later, or "
                        "give the set with --descriptors.",
                        KEPT_MAX,
                        KEPT_S // 60,
                    )
                )
            self._kept.pop(previous, None)
            key = secrets.token_urlsafe(_ID_BYTES)
            self._kept[key] = Kept(shown, data, self._now_s())
        return key

    def forget(self, key: str) -> None:
        """Forget a set, if there is one of this id."""
        with self._lock:
            self._kept.pop(key, None)

    def offered(self, key: str, name: str = "", body: bytes = b"") -> Offered:
        """Return the types for the browser whose set has this id, and a body as the type `name`."""
        return self._worker.submit(self._offered, self._used(key), name, body).result()

    def _offered(self, kept: Kept | None, name: str, body: bytes) -> Offered:
        own = Descriptors() if kept is None else _types_of(kept.file_name, kept.data)
        names = sorted({*own.names, *self._shared.names})
        found = Offered(names, kept, len(own.names))
        if not name:
            return found
        try:
            # The browser's own type hides one of the operator.
            decoded = (own if name in own.names else self._shared).decode(name, body)
        except CliError as refused:
            return replace(found, refusal=str(refused))
        return replace(found, decoded=decoded)

    def _used(self, key: str) -> Kept | None:
        with self._lock:
            self._expire()
            found = self._kept.get(key)
            if found is not None:
                self._kept[key] = found = replace(found, used_s=self._now_s())
            return found

    def _expire(self) -> None:
        since_s = self._now_s() - KEPT_S
        self._kept = {key: one for key, one in self._kept.items() if one.used_s > since_s}

    def _now_s(self) -> float:
        return self._steady_ns() / _NS


#: Why a file is refused; the page has it too, for browsers that check the size themselves.
TOO_LARGE = said(
    "The file is larger than {}. Make a set of fewer files, without "
    "--include_source_info, or give it with --descriptors when the console starts.",
    size(UPLOAD_BYTES_MAX),
)


def _refusal(file_name: str, data: bytes) -> str:
    """Return why a set cannot be used; "" if it can.

    An exception would keep the files of the set in memory as long as the answer is made.
    """
    try:
        _types_of(file_name, data)
    except CliError as refused:
        return str(refused)
    return ""


def _types_of(file_name: str, data: bytes) -> Descriptors:
    """Return the types of an uploaded set. Raises CliError."""
    files = parsed(file_name, data)
    _check(files)
    return built(files)


def _check(files: Sequence[FileDescriptorProto]) -> None:
    """Refuse a set without types, and one that takes much more memory than it has bytes.

    Protobuf keeps the full name of each field and each method, which has the name of its scope.
    Raises CliError.
    """
    count = 0
    for file in files:
        for name in (file.package, *(one.name for one in file.service)):
            _check_name(name)
        for name in type_names(file.package, file.message_type):
            _check_name(name)
            count += 1
            if count > TYPES_MAX:
                raise bad("The set has more than {} message types.", number(TYPES_MAX))
    if not count:
        raise bad("The set has no message type.")


def _check_name(name: str) -> None:
    if len(name) > NAME_MAX:
        raise bad(
            "The name of a package, service or message type has more than {} characters.", NAME_MAX
        )
