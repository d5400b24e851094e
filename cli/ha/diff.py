"""`cometmq ha diff`: blocks of sealed segments that differ between replicas or from their digest.

A replica returns the digest taken when a segment was sealed and the CRC-32 of its present bytes
(docs/formats/ha.md, R14). A block is equal on all replicas, different between replicas, or damaged
on some (its bytes do not match their digest).
"""

from collections import defaultdict
from collections.abc import Sequence
from typing import Any

from ...operations.replication import Replica
from ...proto import paths, v1
from ..links import connect
from .replicas import refresh

_WITHIN_S = 600.0


def compare(replicas: Sequence[Replica]) -> list[dict[str, Any]]:
    """Return a row for every block that differs or is damaged. Raises CliError."""
    blocks: dict[tuple[int, int], dict[int, v1.BlockDigest]] = defaultdict(dict)
    for one in replicas:
        refresh(one)
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
    import grpc

    with connect(one.ha) as connection:
        stream = connection.channel.unary_stream(
            paths.GET_DIGESTS,
            request_serializer=lambda request: request.SerializeToString(),
            response_deserializer=v1.BlockDigest.FromString,
        )(v1.DigestsRequest(), timeout=_WITHIN_S, metadata=connection.metadata)
        try:
            return list(stream)
        except grpc.RpcError as error:
            raise connection.failure(error) from None


def _row(offset: int, length: int, found: dict[int, v1.BlockDigest]) -> dict[str, Any] | None:
    damaged = [broker for broker, one in found.items() if one.sealed and one.now != one.crc32]
    values = {one.now for one in found.values()}
    if len(values) <= 1 and not damaged:
        return None
    return {
        "offset": offset,
        "length": length,
        "what": "damaged" if damaged else "different",
        "brokers": damaged or sorted(found),
        "crc32": [f"{broker}: {one.now:08x}" for broker, one in sorted(found.items())],
    }
