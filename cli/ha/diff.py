"""`cometmq ha diff`: blocks of sealed segments whose bytes differ between replicas, or from their own digest.

A replica sends the digest that it took when a segment was finished and the CRC-32 of what lies there now (HA
note, R14). Three outcomes for a block: equal everywhere; different between replicas; rotten on one (its bytes are
not what they were).
"""

from collections import defaultdict
from collections.abc import Sequence
from typing import Any

import grpc

from ...proto import paths, v1
from ..connection import Connection, failure
from .doors import Replica

_WITHIN_S = 600.0


def compare(replicas: Sequence[Replica]) -> list[dict[str, Any]]:
    """A row for every block that is not the same everywhere. Raises CliError."""
    blocks: dict[tuple[int, int], dict[int, v1.BlockDigest]] = defaultdict(dict)
    for one in replicas:
        one.ask()
        if one.status is None:
            continue
        for digest in _digests(one):
            blocks[digest.offset, digest.length][one.broker_id] = digest
    return [
        row
        for (offset, length), found in sorted(blocks.items())
        if (row := _row(offset, length, found))
    ]


def _digests(one: Replica) -> list[v1.BlockDigest]:
    with Connection(one.ha) as connection:
        stream = connection.channel.unary_stream(
            paths.GET_DIGESTS,
            request_serializer=lambda request: request.SerializeToString(),
            response_deserializer=v1.BlockDigest.FromString,
        )(v1.DigestsRequest(), timeout=_WITHIN_S, metadata=connection.metadata)
        try:
            return list(stream)
        except grpc.RpcError as error:
            raise failure(error, one.ha) from None


def _row(offset: int, length: int, found: dict[int, v1.BlockDigest]) -> dict[str, Any] | None:
    rotten = [broker for broker, one in found.items() if one.sealed and one.now != one.crc32]
    values = {one.now for one in found.values()}
    if len(values) <= 1 and not rotten:
        return None
    return {
        "offset": offset,
        "length": length,
        "what": "rotten" if rotten else "different",
        "brokers": rotten or sorted(found),
        "crc32": [f"{broker}: {one.now:08x}" for broker, one in sorted(found.items())],
    }
