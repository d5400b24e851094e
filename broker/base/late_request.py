"""A request as it came in, decoded when a part reads its fields.

The native crate works on the bytes of frequent requests. A request that it accepts is decoded only
where rights or a route depend on its fields.
"""

from __future__ import annotations

from functools import partial
from typing import Any

from msgspec.structs import replace

from ...front.service import Method, read_message


class LateRequest:
    """Stands for a decoded request; subclasses have its fields."""

    __slots__ = ("_decoded", "_method", "raw")

    def __init__(self, method: Method, raw: bytes) -> None:
        """`method` has the limits and the decoder."""
        self.raw = raw
        self._method = method
        self._decoded: Any = None

    def decoded(self) -> Any:
        """Return the request. Raises RpcFailure or WireError, as the front door does for a request
        that is too large or cannot be decoded."""
        if self._decoded is None:
            self._decoded = read_message(self._method, self.raw)
        return self._decoded

    def SerializeToString(self) -> bytes:
        """Return the bytes as they came in."""
        return self.raw


def decoded_late(method: Method, kind: type[LateRequest]) -> Method:
    """Return the method with requests of this kind."""
    return replace(method, parse=partial(kind, method), limits=None)
