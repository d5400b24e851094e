"""Properties of rows that are sent to a broker. Pure.

A row from a log has properties that a broker wrote. They are dropped, except tags, keys and
message group, which the protocol sends in separate fields.
"""

from collections.abc import Mapping
from typing import Final

from ..store.format.property_names import FORBIDDEN_PROPERTIES

SHARDING_KEY: Final = "__SHARDINGKEY"
PRIORITY: Final = "_SYS_MSG_PRIORITY_"
#: Property names that brokers refuse from users.
RESERVED: Final = FORBIDDEN_PROPERTIES
#: Column -> property with the origin of a message that was sent again.
ORIGIN: Final = {
    "topic": "replay-topic",
    "brokerName": "replay-broker",
    "queueId": "replay-queue-id",
    "queueOffset": "replay-queue-offset",
    "msgId": "replay-message-id",
    "bornTimestamp": "replay-born-ms",
    "storeTimestamp": "replay-store-ms",
    "physicalOffset": "replay-physical-offset",
}


def user_properties(properties: Mapping[str, str] | None) -> dict[str, str]:
    """Return the properties that a sender may set."""
    return {
        name: value
        for name, value in (properties or {}).items()
        if name not in RESERVED and name and value
    }
