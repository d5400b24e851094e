"""Reads whole topics back through the SDK, as consumers see them."""

from __future__ import annotations

from typing import Any

import cometmq
from cometmq.pipeline.outbound import ORIGIN


def whole_topic(endpoints: str, topic: str, count: int, quiet_s: float = 2.0) -> list[Any]:
    """Return the messages of a topic: at least `count`, and those that follow shortly after."""
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
    """Return a message's content without its position and origin."""
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
