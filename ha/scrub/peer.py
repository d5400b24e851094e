"""Client of another replica's ReplicaControl: digests, log bytes, status (docs/formats/ha.md,
R14)."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any, Final
from zlib import crc32

from google.protobuf.message import DecodeError

from ...nodes.node_links import NodeLinks
from ...proto import paths, v1
from ...proto.channels import cancel_requests
from ..stream.channel import is_stream_end
from ..stream.node_call import NodeCallError, call_node

__all__ = ["Peer", "PeerError"]

#: Missing digests are computed first: half a second per GiB, plus the disk.
_DIGESTS_TIMEOUT_S: Final = 600.0
_READ_TIMEOUT_S: Final = 30.0
_STATUS_TIMEOUT_S: Final = 2.0


class PeerError(Exception):
    """The replica did not answer, or sent an invalid answer."""


class Peer:
    """One replica at its replication address."""

    def __init__(self, address: str, links: NodeLinks) -> None:
        self.address = address
        self._links = links
        self._metadata = links.metadata(address)

    async def digests(self, start: int, end: int) -> AsyncIterator[v1.BlockDigest]:
        """Yield its recorded digests of finished blocks in the range. Raises PeerError."""
        request = v1.DigestsRequest(start=start, end=end, recorded_only=True)
        async for each in self._stream(
            paths.GET_DIGESTS, request, v1.BlockDigest, _DIGESTS_TIMEOUT_S
        ):
            yield each

    async def read(self, offset: int, length: int) -> bytes:
        """Return its bytes from `offset` on, fewer if it does not have all. Raises PeerError."""
        request = v1.ReadRangeRequest(offset=offset, length=length)
        found = bytearray()
        async for part in self._stream(paths.READ_RANGE, request, v1.LogBytes, _READ_TIMEOUT_S):
            if part.offset != offset + len(found) or crc32(part.data) != part.crc32:
                raise PeerError(f"{self.address} sent damaged bytes at {part.offset}")
            found += part.data
            if len(found) > length:
                raise PeerError(f"{self.address} sent more bytes than requested")
        return bytes(found)

    async def status(self) -> v1.ReplicaStatus:
        """Return its status. Raises PeerError."""
        request = v1.StatusRequest()
        try:
            return await call_node(
                self._links,
                self.address,
                paths.REPLICA_STATUS,
                request,
                v1.ReplicaStatus,
                timeout_s=_STATUS_TIMEOUT_S,
            )
        except NodeCallError as error:
            raise PeerError(str(error)) from error

    async def _stream(
        self, path: str, request: Any, kind: Any, timeout_s: float
    ) -> AsyncIterator[Any]:
        asked_to_end = cancel_requests()
        try:
            async with self._links.channel(self.address) as channel:
                call = channel.unary_stream(path)
                raw = request.SerializeToString()
                async for answer in call(raw, timeout=timeout_s, metadata=self._metadata):
                    yield kind.FromString(answer)
        except DecodeError as error:
            raise PeerError(f"{self.address} sent an invalid message") from error
        except Exception as error:
            if cancel_requests() > asked_to_end:
                raise asyncio.CancelledError from None
            if is_stream_end(error):
                raise PeerError(f"{self.address}: {error}") from error
            raise
