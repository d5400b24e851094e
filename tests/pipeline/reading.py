"""Reads whole topics back through the SDK, as consumers see them."""

from __future__ import annotations

from typing import Any

import cometmq
from cometmq.pipeline.outbound import ORIGIN


def whole_topic(endpoints: str, topic: str, count: int, quiet_s: float = 2.0) -> list[Any]:
    """Every message of a topic, at least `count` and all that come within a moment behind them."""
    found: list[Any] = []
    consumer = cometmq.sync.PullConsumer(
        endpoints, group=f"read-{topic}", topics=topic, start_at=cometmq.BEGINNING
    )
    with consumer as pull:
        while True:
            message = pull.poll(wait=20.0 if len(found) < count else quiet_s)
            if message is None:
                return found
            found.append(message)


def face(message: Any) -> tuple[Any, ...]:
    """What a consumer sees of a message, apart from where it lies and where it came from."""
    properties = {
        name: value
        for name, value in message.properties.items()
        if name not in set(ORIGIN.values())
    }
    return (
        message.body,
        message.tag,
        tuple(message.keys),
        message.group,
        tuple(sorted(properties.items())),
    )
