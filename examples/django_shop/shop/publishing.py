"""One producer for each process of the web server, made with the first message.

Servers that fork their workers (gunicorn, uWSGI) import this module before the fork; a client
cannot be used in a child of the process that made it.
"""

import atexit
from functools import cache

from django.conf import settings

import cometmq


@cache
def producer() -> cometmq.sync.Producer:
    """Return the producer of this process."""
    made = cometmq.sync.Producer(settings.COMETMQ_ENDPOINT, topics=["shop-orders"]).start()
    atexit.register(made.close)
    return made


def publish(order_id: int) -> None:
    """Send the event of a new order."""
    producer().send("shop-orders", str(order_id).encode(), tag="new", keys=[f"order-{order_id}"])
