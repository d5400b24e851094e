"""What a message looks like on its way back to a broker: names that brokers keep for themselves, and ids.

A row that came from a log carries the properties that a broker wrote. Those are not the sender's: tags,
keys and message group go where the protocol has fields for them, the others stay behind. Unique keys are
derived from what a message is or where it stands in a job, so that a repeated task says the same ones
and a broker with `messageDeduplicationEnable` stores them once. Pure. (gRPC API, section 10.3)
"""

import hashlib
from collections.abc import Mapping
from typing import Final

from ..store.format.property_names import FORBIDDEN_PROPERTIES

SHARDING_KEY: Final = "__SHARDINGKEY"
PRIORITY: Final = "_SYS_MSG_PRIORITY_"
#: Names that brokers refuse as properties of the user.
RESERVED: Final = FORBIDDEN_PROPERTIES
#: Properties that say where a message that was sent again comes from.
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
    """The properties that a sender may say."""
    return {
        name: value
        for name, value in (properties or {}).items()
        if name not in RESERVED and name and value
    }


def unique_key(*parts: object) -> str:
    """A message id made of what stays the same when a task is repeated: 32 hexadecimal digits."""
    text = "\0".join(map(str, parts)).encode()
    return hashlib.blake2b(text, digest_size=16).hexdigest().upper()
