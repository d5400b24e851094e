"""Expiry of silent clients: a background task of brokers and proxies."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .registry import ClientRegistry


async def expire_clients(
    clients: ClientRegistry,
    steady_ns: Callable[[], int],
    expiry_ms: int,
    gone: Callable[[str], None],
) -> None:
    """Remove silent clients until cancelled; `gone` is called with the id of each.

    Checking every quarter of the expiry time is enough.
    """
    loop = asyncio.get_running_loop()
    while True:
        await asyncio.sleep(expiry_ms / 4_000)
        for client_id in clients.expire(steady_ns()):
            # Not in this task: an exception must not end it.
            loop.call_soon(gone, client_id)
