"""The life of an order: placed in a transaction, then its steps in order.

* `place` writes the order into a database and its message in one transaction: the message appears
  exactly if the order does. If the process dies in between, the broker asks `was_placed`.
* The steps of one order are one message group of a FIFO topic: they are handled one after the
  other, while the steps of other orders are handled at the same time.
"""

import asyncio
import os
import sqlite3
import sys

import cometmq

ENDPOINTS = os.environ.get("COMETMQ_ENDPOINT", "127.0.0.1:8081")
STEPS = ("reserved", "paid", "shipped")

database = sqlite3.connect(os.environ.get("DATABASE", "workflow.sqlite"))
database.execute("CREATE TABLE IF NOT EXISTS orders (id TEXT PRIMARY KEY, history TEXT)")


def was_placed(message: cometmq.Message) -> cometmq.Resolution:
    """Tell the broker how a transaction ended whose process died."""
    found = database.execute("SELECT 1 FROM orders WHERE id = ?", (message.body.decode(),))
    return cometmq.Resolution.COMMIT if found.fetchone() else cometmq.Resolution.ROLLBACK


async def place(producer: cometmq.TransactionProducer, order: str) -> None:
    """Place an order; the message is visible when the block ends without an error."""
    async with producer.transaction("placed", order.encode(), keys=[order]):
        with database:
            database.execute("INSERT INTO orders VALUES (?, 'placed')", (order,))


async def main(orders: list[str]) -> None:
    missing = set(orders)
    done = asyncio.Event()
    async with (
        cometmq.Producer(ENDPOINTS, topics=["steps"]) as steps,
        cometmq.TransactionProducer(ENDPOINTS, topics=["placed"], checker=was_placed) as producer,
    ):

        @cometmq.consumer(ENDPOINTS, group="planner", topics="placed")
        async def plan(message: cometmq.Message) -> None:
            for step in STEPS:
                await steps.send("steps", step.encode(), group=message.body.decode())

        @cometmq.consumer(ENDPOINTS, group="stepper", topics="steps")
        async def perform(message: cometmq.Message) -> None:
            order, step = message.group, message.body.decode()
            with database:  # a repeated message changes nothing
                database.execute(
                    "UPDATE orders SET history = history || ', ' || ? "
                    "WHERE id = ? AND instr(history, ?) = 0",
                    (step, order, step),
                )
            if step == STEPS[-1]:
                missing.discard(order)
            if not missing:
                done.set()

        async with plan.open(), perform.open():
            for order in orders:
                await place(producer, order)
            await done.wait()
    for order in orders:
        row = database.execute("SELECT history FROM orders WHERE id = ?", (order,)).fetchone()
        print(f"{order}: {row[0]}")


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1:]))
