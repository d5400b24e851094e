"""Opens the log that options name: store directories or a cluster."""

from __future__ import annotations

from .log import Log
from .options import SourceOptions
from .replicas import refuse_replicas
from .store_log import StoreLog
from .wire import open_wire


def open_log(options: SourceOptions) -> Log:
    """Open the log. Raises UnreachableError, OptionError (replicas of one log in `path`)."""
    if options.access is None:
        log = StoreLog(
            options.paths,
            options.brokers,
            lambda broker, topic, queue: options.queue_filter(broker).matches_queue(topic, queue),
            fail_on_loss=options.fail_on_loss,
        )
        if not options.allow_replicas:
            refuse_replicas(options.paths)
        return log
    return open_wire(options)
