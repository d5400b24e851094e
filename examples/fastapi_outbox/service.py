"""An HTTP service that stores an order and its message in one transaction of its database.

The table `outbox` has the messages that are not sent yet. A task sends them and deletes what is
acknowledged: no order is without its message, also if the process dies at any moment. A message
may be sent twice; its key is the order's number, by which consumers recognize it.
"""

import asyncio
import json
import logging
import os
import sqlite3
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, closing, suppress

from fastapi import FastAPI
from pydantic import BaseModel

import cometmq

ENDPOINTS = os.environ.get("COMETMQ_ENDPOINT", "127.0.0.1:8081")
DATABASE = os.environ.get("DATABASE", "orders.sqlite")
TABLES = """
CREATE TABLE IF NOT EXISTS orders (id INTEGER PRIMARY KEY, item TEXT, amount INTEGER);
CREATE TABLE IF NOT EXISTS outbox (id INTEGER PRIMARY KEY, order_id INTEGER, body BLOB);
"""
BATCH = 100
RETRY_S = 1.0


class Order(BaseModel):
    """What a customer orders."""

    item: str
    amount: int


def connect() -> sqlite3.Connection:
    return sqlite3.connect(DATABASE)


def store(order: Order) -> int:
    """Store an order and its message; return the number of the order."""
    with closing(connect()) as database, database:
        insert = "INSERT INTO orders (item, amount) VALUES (?, ?)"
        number = database.execute(insert, (order.item, order.amount)).lastrowid
        assert number is not None
        body = json.dumps({"id": number, **order.model_dump()}).encode()
        database.execute("INSERT INTO outbox (order_id, body) VALUES (?, ?)", (number, body))
        return number


def waiting() -> list[tuple[int, int, bytes]]:
    """Return the oldest messages of the outbox."""
    with closing(connect()) as database:
        return database.execute(
            "SELECT id, order_id, body FROM outbox ORDER BY id LIMIT ?", (BATCH,)
        ).fetchall()


def delete(number: int) -> None:
    """Delete a message that is acknowledged."""
    with closing(connect()) as database, database:
        database.execute("DELETE FROM outbox WHERE id = ?", (number,))


async def relay(wake: asyncio.Event) -> None:
    """Send what is in the outbox, now and whenever there is more."""
    async with cometmq.Producer(ENDPOINTS, topics=["orders"]) as producer:
        while True:
            wake.clear()
            try:
                while found := await asyncio.to_thread(waiting):
                    for number, order, body in found:
                        await producer.send("orders", body, tag="new", keys=[f"order-{order}"])
                        await asyncio.to_thread(delete, number)
            except cometmq.CometError:
                logging.exception("the outbox waits")
                await asyncio.sleep(RETRY_S)
                continue
            await wake.wait()


@asynccontextmanager
async def lifespan(app: FastAPI) -> AsyncIterator[None]:
    """Create the tables and run the relay while the service runs."""
    with closing(connect()) as database, database:
        database.executescript(TABLES)
    app.state.wake = asyncio.Event()
    task = asyncio.create_task(relay(app.state.wake))
    yield
    task.cancel()
    with suppress(asyncio.CancelledError):
        await task


app = FastAPI(lifespan=lifespan)


@app.post("/orders", status_code=201)
async def create(order: Order) -> dict[str, int]:
    """Accept an order."""
    number = await asyncio.to_thread(store, order)
    app.state.wake.set()
    return {"id": number}
