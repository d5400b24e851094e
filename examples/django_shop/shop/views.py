"""The pages of the shop: create an order, show an order."""

from functools import partial

from django.db import transaction
from django.http import HttpRequest, JsonResponse
from django.shortcuts import get_object_or_404
from django.views.decorators.http import require_GET, require_POST

from .models import Order
from .publishing import publish


@require_POST
def create(request: HttpRequest) -> JsonResponse:
    """Create an order and publish it after the commit.

    If the send fails, the order stays without a message and the request fails: the customer sees
    it. Where that is not acceptable, use an outbox (examples/fastapi_outbox).
    """
    with transaction.atomic():
        order = Order.objects.create(item=request.POST["item"])
        transaction.on_commit(partial(publish, order.pk))
    return JsonResponse({"id": order.pk}, status=201)


@require_GET
def show(_request: HttpRequest, number: int) -> JsonResponse:
    """Show an order and its state."""
    order = get_object_or_404(Order, pk=number)
    return JsonResponse({"id": order.pk, "item": order.item, "state": order.state})
