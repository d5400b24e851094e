"""The settings of a consumer group as fields."""

from typing import Any

from ..proto import v1
from .times import duration_text


def group_settings(config: v1.GroupConfig) -> dict[str, Any]:
    """Return the settings of a consumer group as fields."""
    attributes = dict(sorted(config.attributes.items()))
    return {
        **group_row(config),
        "retry_policy": retry_policy(config.retry),
        "attributes": attributes,
    }


def group_row(config: v1.GroupConfig) -> dict[str, object]:
    """Return what a list of groups shows of one."""
    return {
        "group": config.name,
        "order": config.orderly,
        "max_attempts": config.max_attempts,
        "retry_queues": config.retry_queues,
        "consume_enable": config.consume_enable,
    }


def retry_policy(retry: v1.GroupRetry) -> str:
    """Return the retry policy of a group as text."""
    if retry.delays_ms:
        return f"customized: {', '.join(map(duration_text, retry.delays_ms))}"
    if retry.initial_ms:
        times = f"x{retry.multiplier:g}"
        first, longest = duration_text(retry.initial_ms), duration_text(retry.max_ms)
        return f"exponential: {first} {times} up to {longest}"
    return "customized: the broker's table"
