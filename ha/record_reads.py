"""Record reads from a peer's log by position: `ReplicaControl.ReadPlaces`.

A leader that delivers old messages takes their positions from its queues and reads them from a
follower, whose disk is otherwise idle (docs/formats/ha.md, R10). An answer holds every requested
range in full length, or nothing; the follower's event loop does not wait for its disk. The caller
verifies the bytes.
"""

import asyncio
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, ExitStack
from typing import Final, Protocol

import grpc
from google.protobuf.message import DecodeError

from ..nodes.node_links import NodeLinks
from ..proto import paths, v1, v2
from ..store.format.errors import CorruptLogError, OffsetOutOfRangeError
from .config import FRAME_OVERHEAD_BYTES, MAX_FRAME_BYTES
from .scrub.peer import PeerError
from .stream.redial import RedialedChannel

#: Limit of one answer: a frame less the prefixes of the records.
_BYTES_MAX: Final = MAX_FRAME_BYTES - FRAME_OVERHEAD_BYTES
_COUNT_MAX: Final = 1024
#: Timeout: from a slower disk the caller reads its own log instead.
_TIMEOUT_S: Final = 2.0
_OPTIONS: Final = (("grpc.max_receive_message_length", MAX_FRAME_BYTES),)


class RangeReads(Protocol):
    """The part of a store that reads need (`store/blocks.py`)."""

    def range_reader(
        self, ranges: Sequence[tuple[int, int]]
    ) -> AbstractContextManager[Callable[[], list[bytes]]]: ...


async def read_places(blocks: RangeReads, request: v1.ReadPlacesRequest) -> v1.ReadPlacesResponse:
    """Return a replica's answer to a read request."""
    if len(request.offsets) != len(request.lengths) or len(request.offsets) > _COUNT_MAX:
        text = f"offsets and lengths must have equal counts, at most {_COUNT_MAX}"
        return v1.ReadPlacesResponse(code=v2.BAD_REQUEST, message=text)
    if sum(request.lengths) > _BYTES_MAX:
        text = f"more than {_BYTES_MAX} bytes requested"
        return v1.ReadPlacesResponse(code=v2.BAD_REQUEST, message=text)
    ranges = list(zip(request.offsets, request.lengths, strict=True))
    held = ExitStack()
    try:
        read = held.enter_context(blocks.range_reader(ranges))
        work = asyncio.get_running_loop().run_in_executor(None, read)
        # Not when this task ends: a cancelled call does not stop the thread, which needs the files.
        work.add_done_callback(lambda _: held.close())
        records = await asyncio.shield(work)
    except (OffsetOutOfRangeError, CorruptLogError, OSError) as error:
        return v1.ReadPlacesResponse(code=v2.INTERNAL_ERROR, message=str(error))
    if [len(record) for record in records] != list(request.lengths):
        text = "range extends past the log end"
        return v1.ReadPlacesResponse(code=v2.INTERNAL_ERROR, message=text)
    return v1.ReadPlacesResponse(code=v2.OK, records=records)


class PeerRecordReads:
    """Reads from one replication address; used on one event loop."""

    def __init__(self, address: str, links: NodeLinks) -> None:
        self.address = address
        self._channel = RedialedChannel(address, links, _OPTIONS)
        self._metadata = links.metadata(address)

    async def read(self, ranges: Sequence[tuple[int, int]]) -> list[bytes]:
        """Return the bytes of each (offset, length). Raises PeerError."""
        request = v1.ReadPlacesRequest(
            offsets=[offset for offset, _ in ranges], lengths=[length for _, length in ranges]
        )
        try:
            raw = await self._channel.call(
                paths.READ_PLACES, request.SerializeToString(), self._metadata, _TIMEOUT_S
            )
            answer = v1.ReadPlacesResponse.FromString(raw)
        except (grpc.RpcError, DecodeError) as error:
            raise PeerError(f"{self.address}: {error}") from error
        if answer.code != v2.OK or len(answer.records) != len(ranges):
            raise PeerError(f"{self.address}: {answer.message}")
        return list(answer.records)

    async def close(self) -> None:
        await self._channel.close()
