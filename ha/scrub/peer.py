"""Another replica over ReplicaControl: its digests, its bytes, and how it is (HA note, R14)."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any, Final
from zlib import crc32

import grpc
from google.protobuf.message import DecodeError

from ...proto import paths, v1
from ...proto.peers import cancel_requests
from ..stream.channel import is_stream_end
from ..stream.token import TOKEN_KEY

__all__ = ["Peer", "PeerError"]

#: Digests of a segment that nobody asked for before are taken first: half a second a GiB, and the disk.
_DIGESTS_TIMEOUT_S: Final = 600.0
_READ_TIMEOUT_S: Final = 30.0
_STATUS_TIMEOUT_S: Final = 2.0


class PeerError(Exception):
    """The replica did not answer, or not as it should."""


class Peer:
    """One replica at the address of its replication port."""

    def __init__(self, address: str, token: str = "") -> None:
        self.address = address
        self._metadata = ((TOKEN_KEY, token),) if token else ()

    async def digests(self, start: int, end: int) -> AsyncIterator[v1.BlockDigest]:
        """What it noted of the blocks of its finished segments in the range. Raises PeerError."""
        request = v1.DigestsRequest(start=start, end=end, recorded_only=True)
        async for each in self._stream(
            paths.GET_DIGESTS, request, v1.BlockDigest, _DIGESTS_TIMEOUT_S
        ):
            yield each

    async def read(self, offset: int, length: int) -> bytes:
        """Its bytes from `offset` on; fewer if it does not have them. Raises PeerError."""
        request = v1.ReadRangeRequest(offset=offset, length=length)
        found = bytearray()
        async for part in self._stream(paths.READ_RANGE, request, v1.LogBytes, _READ_TIMEOUT_S):
            if part.offset != offset + len(found) or crc32(part.data) != part.crc32:
                raise PeerError(f"{self.address} sent damaged bytes at {part.offset}")
            found += part.data
            if len(found) > length:
                raise PeerError(f"{self.address} sent more than was asked for")
        return bytes(found)

    async def status(self) -> v1.ReplicaStatus:
        """What it says of itself. Raises PeerError."""
        asked_to_end = cancel_requests()
        try:
            async with grpc.aio.insecure_channel(self.address) as channel:
                call = channel.unary_unary(paths.REPLICA_STATUS)
                raw = v1.StatusRequest().SerializeToString()
                answer = await call(raw, timeout=_STATUS_TIMEOUT_S, metadata=self._metadata)
                return v1.ReplicaStatus.FromString(answer)
        except DecodeError as error:
            raise PeerError(f"{self.address} sent what cannot be read") from error
        except Exception as error:
            if cancel_requests() > asked_to_end:
                raise asyncio.CancelledError from None
            if is_stream_end(error):
                raise PeerError(f"{self.address}: {error}") from error
            raise

    async def _stream(
        self, path: str, request: Any, kind: Any, timeout_s: float
    ) -> AsyncIterator[Any]:
        asked_to_end = cancel_requests()
        try:
            async with grpc.aio.insecure_channel(self.address) as channel:
                call = channel.unary_stream(path)
                raw = request.SerializeToString()
                async for answer in call(raw, timeout=timeout_s, metadata=self._metadata):
                    yield kind.FromString(answer)
        except DecodeError as error:
            raise PeerError(f"{self.address} sent what cannot be read") from error
        except Exception as error:
            if cancel_requests() > asked_to_end:
                raise asyncio.CancelledError from None
            if is_stream_end(error):
                raise PeerError(f"{self.address}: {error}") from error
            raise
