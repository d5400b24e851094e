"""Limit of the settings of one Telemetry stream: each costs checks, and a call to each leader."""

from typing import Final

from ...proto.errors import RESOURCE_EXHAUSTED, RpcFailure

#: Settings of one stream in `_PERIOD_NS`. Official clients send them when a stream begins and when
#: a subscription changes, some every few minutes.
SETTINGS_MAX: Final = 100
_PERIOD_NS: Final = 1_000_000_000
TOO_MANY_SETTINGS: Final = RpcFailure(
    RESOURCE_EXHAUSTED, f"more than {SETTINGS_MAX} settings in a second on one stream; send fewer"
)


class SettingsRate:
    """The count of one stream."""

    __slots__ = ("_count", "_since_ns")

    def __init__(self) -> None:
        self._count = 0
        self._since_ns = 0

    def exceeded(self, now_ns: int) -> bool:
        """Count settings; return whether the stream sends more than it may."""
        if now_ns - self._since_ns >= _PERIOD_NS:
            self._since_ns, self._count = now_ns, 0
        self._count += 1
        return self._count > SETTINGS_MAX
