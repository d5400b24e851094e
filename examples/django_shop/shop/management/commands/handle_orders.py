"""`python manage.py handle_orders`: the consumer of the shop, until Ctrl-C or SIGTERM."""

from django.conf import settings
from django.core.management.base import BaseCommand
from django.db import close_old_connections

import cometmq

from ...models import Order


def handle_order(message: cometmq.Message) -> None:
    """Handle one order, in a thread; a repeated message changes nothing."""
    close_old_connections()
    Order.objects.filter(pk=int(message.body), state="new").update(state="handled")


class Command(BaseCommand):
    """Handle the orders of the topic `shop-orders`."""

    help = "Handle new orders."

    def handle(self, **_options):
        consume = cometmq.consumer(
            settings.COMETMQ_ENDPOINT, group="shop", topics={"shop-orders": "new"}, concurrency=4
        )
        consume(handle_order).run()
