"""Opens what options point to: directories, or a cluster."""

from __future__ import annotations

from dataclasses import replace

from ..selection import TopicFilter
from .log import Log
from .options import SourceOptions
from .replicas import refuse_replicas
from .store_log import StoreLog


def open_log(options: SourceOptions) -> Log:
    """Raises UnreachableError; OptionError for directories that hold one log."""
    if options.access is None:
        log = StoreLog(
            *(options.paths, options.brokers),
            lambda broker, topic, queue: queue_filter(options, broker).wants_queue(topic, queue),
            fail_on_loss=options.fail_on_loss,
        )
        if not options.allow_replicas:
            refuse_replicas(options.paths)
        return log
    from .wire import open_wire

    return open_wire(options)


def queue_filter(options: SourceOptions, broker: str) -> TopicFilter:
    """The topics with the queues of one broker, where queues are assigned."""
    if options.assigned is None:
        return options.topics
    queues = {
        topic: frozenset((*by_broker.get(broker, ()), *by_broker.get("", ())))
        for topic, by_broker in options.assigned.items()
    }
    return replace(options.topics, queues=queues)
