"""A user test with testcontainers; `test_compose.py` runs it beside the engine."""

from __future__ import annotations

import cometmq
from cometmq.client.testing.container import CometMQContainer, ContainerCommandFailed


def main() -> None:
    with CometMQContainer(settings={"maxMessageSize": "4096"}) as broker:
        topic, group = broker.create_topic("orders", type="fifo"), broker.create_group("billing")
        with (
            cometmq.sync.Producer(broker.endpoints) as producer,
            cometmq.sync.SimpleConsumer(broker.endpoints, group=group, topics=topic) as consumer,
        ):
            receipt = producer.send(topic, b"in a container", group="o-1")
            (message,) = consumer.receive(wait=20)
            consumer.ack(message)
            assert message.message_id == receipt.message_id
            try:
                producer.send(topic, b"x" * 8192, group="o-1")
            except (cometmq.CometError, ValueError):
                print("too large: refused")
        try:
            broker.command("topic", "describe", "nowhere")
        except ContainerCommandFailed as error:
            print(error)
    print("all of it worked")


if __name__ == "__main__":
    main()
