"""Reports of messages that no longer exist, by `failOnDataLoss`: an error, or a warning."""

from __future__ import annotations

import logging

from ..errors import DataLossError
from .offsets import Queue

logger = logging.getLogger(__name__)


def queue_text(queue: Queue) -> str:
    """Return a queue's name in a sentence."""
    broker, topic, queue_id = queue
    return f"queue {queue_id} of {topic} ({broker})"


def report_loss(text: str, *, fail_on_loss: bool) -> None:
    """Raise DataLossError or, without `fail_on_loss`, log a warning."""
    if fail_on_loss:
        raise DataLossError(
            f"{text} Set failOnDataLoss=false to continue with the existing messages."
        )
    warn_of_loss(f"{text} Reading goes on (failOnDataLoss=false).")


def warn_of_loss(text: str) -> None:
    """Log a warning."""
    logger.warning("pipeline.data_loss %s", text)
