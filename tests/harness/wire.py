"""The raw client of the drills (`drills/wire.py`), which most tests use, too."""

from cometmq.drills.wire import (
    OPTIONS,
    WITHIN_S,
    Metadata,
    Wire,
    normal_message,
    receive_request,
    target,
)

__all__ = [
    "OPTIONS",
    "WITHIN_S",
    "Metadata",
    "Wire",
    "normal_message",
    "receive_request",
    "target",
]
