"""The orders of the shop."""

from django.db import models


class Order(models.Model):
    """An order; its state is `new` until the consumer has handled it."""

    item = models.CharField(max_length=100)
    state = models.CharField(max_length=20, default="new")
