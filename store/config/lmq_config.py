"""Settings of light queues; part of `StoreConfig`."""

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True, kw_only=True)
class LmqOptions:
    """RocketMQ's keys. There both switches are off; here lite topics work without a setting."""

    enable_lmq: bool = field(
        default=True, metadata={"help": "put records into the light queues that they name"}
    )
    enable_multi_dispatch: bool = field(
        default=True,
        metadata={"help": "the same: both must be true, as with RocketMQ, where both are false"},
    )
    max_lmq_consume_queue_num: int = field(
        default=20_000,
        metadata={"help": "light queues at most; messages that would begin more are refused"},
    )

    @property
    def light_queues(self) -> int:
        """How many light queues there may be; 0: none are written."""
        both = self.enable_lmq and self.enable_multi_dispatch
        return self.max_lmq_consume_queue_num if both else 0
