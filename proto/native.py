"""The native crate (`cometmq_native`): the one object through which the program uses it.

It is loaded once, by the parts that put a process together, and handed to those that use it. Its
types are those of `native/cometmq_native.pyi`. Everything that it does is also done without it: the
grpcio door serves, and Python encodes and decodes. With COMETMQ_NATIVE=off a process behaves as if
the crate were not installed. docs/design/native.md lists the twins.
"""

from __future__ import annotations

import importlib.util
import os
from functools import cache
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    import cometmq_native as crate

MODULE: Final = "cometmq_native"
#: The version of the crate that belongs to this program; the wheel's `native` extra names it.
VERSION: Final = "0.1.0"
#: The environment variable that switches the crate off.
SWITCH: Final = "COMETMQ_NATIVE"


class NativeVersionError(ValueError):
    """The installed crate belongs to another version of the program."""

    def __init__(self, version: str) -> None:
        super().__init__(
            f"The installed cometmq-native is of version {version or 'unknown (before 0.1.0)'}, "
            f"but this program needs {VERSION}: install that version, or set {SWITCH}=off."
        )


class Native:
    """The parts of the crate."""

    def __init__(self) -> None:
        """Raises ImportError, NativeVersionError."""
        import cometmq_native as crate

        version = getattr(crate, "__version__", "")
        if version != VERSION:
            raise NativeVersionError(version)
        codec = crate.codec
        # The door and the client of other nodes.
        self.server: type[crate.Server] = crate.Server
        self.client: type[crate.Client] = crate.Client
        self.requests: type[crate.Requests] = crate.Requests
        self.self_signed = crate.self_signed
        # Sends and acknowledgements.
        self.send_planner: type[crate.codec.SendPlanner] = codec.SendPlanner
        self.send_template: type[crate.codec.SendTemplate] = codec.SendTemplate
        self.count_messages = codec.count_messages
        self.ack_reader: type[crate.codec.AckReader] = codec.AckReader
        # The store, and receives.
        self.queue_records: type[crate.QueueRecords] = crate.QueueRecords
        self.wire_messages: type[crate.WireMessages] = crate.WireMessages
        self.index_entries = codec.index_entries
        self.queue_units = codec.queue_units
        self.whole_records = codec.whole_records
        # The SDK.
        self.message_reader: type[crate.codec.MessageReader] = codec.MessageReader
        self.send_request = codec.send_request


def is_available() -> bool:
    """Return whether the crate is installed and not switched off."""
    if os.environ.get(SWITCH, "").lower() == "off":
        return False
    return importlib.util.find_spec(MODULE) is not None


def load() -> Native | None:
    """Return the crate; None if it is not available. Raises NativeVersionError."""
    return _loaded() if is_available() else None


@cache
def _loaded() -> Native:
    return Native()
