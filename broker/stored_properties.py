"""The properties of a sent message as the store keeps them: names, values and their order.

Names: store format, section 2.11, and what the Apache 5 proxy stores for a gRPC send (the golden case
`grpc`). Order: RocketMQ writes a Java hash map, so that the order is that of the buckets (section 2.4),
a bucket's entries in the order of insertion: the user's, the proxy's, the broker's. Keeping that order
makes our records the same bytes that Apache would have written; readers never depend on it. Pure.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import TYPE_CHECKING

from ..store.properties import java_hash

if TYPE_CHECKING:
    from .validation import Draft

_BUCKETS = 128
_GROWS_ABOVE = 96


@lru_cache(maxsize=8192)
def _spread_hash(name: str) -> int:
    value = java_hash(name) & 0xFFFFFFFF
    return value ^ value >> 16


def encode_sent(draft: Draft, topic: str, region: str, cluster: str, born_host: str) -> bytes:
    """The encoded properties of a message; `topic` takes the place of the producer group."""
    if draft.user_properties:
        return _encode_with_users(draft, topic, region, cluster, born_host)
    # The common message: the system's properties in bucket order, written out.
    sharding = f"__SHARDINGKEY\x01{draft.message_group}\x02" if draft.message_group else ""
    if draft.delivery_ms is not None:
        sharding += f"TIMER_DELIVER_MS\x01{draft.delivery_ms}\x02"
    tags = f"TAGS\x01{draft.tag}\x02" if draft.tag else ""
    trace = f"TRACE_CONTEXT\x01{draft.trace_context}\x02" if draft.trace_context else ""
    keys = f"KEYS\x01{draft.keys}\x02" if draft.keys else ""
    return (
        f"MSG_REGION\x01{region}\x02{sharding}UNIQ_KEY\x01{draft.message_id}\x02"
        f"CLUSTER\x01{cluster}\x02PGROUP\x01{topic}\x02RECONSUME_TIME\x010\x02{tags}{trace}"
        f"__BORNHOST\x01{born_host}\x02BORN_TIMESTAMP\x01{draft.born_ms}\x02{keys}TRACE_ON\x01true\x02"
    ).encode()


def system_properties(
    draft: Draft, topic: str, region: str, cluster: str, born_host: str
) -> dict[str, str]:
    """The broker's and the proxy's properties, in the order in which Apache inserts them."""
    properties = {"UNIQ_KEY": draft.message_id}
    if draft.tag:
        properties["TAGS"] = draft.tag
    if draft.keys:
        properties["KEYS"] = draft.keys
    if draft.message_group:
        properties["__SHARDINGKEY"] = draft.message_group
    if draft.delivery_ms is not None:
        properties["TIMER_DELIVER_MS"] = str(draft.delivery_ms)
    if draft.trace_context:
        properties["TRACE_CONTEXT"] = draft.trace_context
    properties["RECONSUME_TIME"] = "0"
    properties["PGROUP"] = topic
    properties["__BORNHOST"] = born_host
    properties["BORN_TIMESTAMP"] = str(draft.born_ms)
    properties["MSG_REGION"] = region
    properties["TRACE_ON"] = "true"
    properties["CLUSTER"] = cluster
    return properties


def in_bucket_order(properties: Mapping[str, str]) -> dict[str, str]:
    """The same entries in the order of a Java hash map of 128 buckets, insertion order within one."""
    buckets = _BUCKETS
    while len(properties) > buckets * _GROWS_ABOVE // _BUCKETS:
        buckets *= 2
    mask = buckets - 1
    return {
        name: properties[name] for name in sorted(properties, key=lambda n: _spread_hash(n) & mask)
    }


def _encode_with_users(
    draft: Draft, topic: str, region: str, cluster: str, born_host: str
) -> bytes:
    assert draft.user_properties is not None
    everything = dict(draft.user_properties)
    everything.update(system_properties(draft, topic, region, cluster, born_host))
    ordered = in_bucket_order(everything)
    return "".join([f"{name}\x01{value}\x02" for name, value in ordered.items()]).encode()
