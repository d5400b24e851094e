"""The official Python client with credentials: sends a message and receives it, for each case.

    python_acl.py CASES

CASES is a JSON list of [endpoint, access key, secret key, topic, group]. Prints a JSON list: the
received body, or the error.
"""

import json
import sys

from rocketmq import (
    ClientConfiguration,
    Credentials,
    FilterExpression,
    Message,
    Producer,
    SimpleConsumer,
)


def run(endpoint: str, access_key: str, secret_key: str, topic: str, group: str) -> str:
    configuration = ClientConfiguration(endpoint, Credentials(access_key, secret_key))
    producer = Producer(configuration, (topic,))
    producer.startup()
    message = Message()
    message.topic = topic
    message.body = b"signed"
    sent = producer.send(message).message_id
    producer.shutdown()
    consumer = SimpleConsumer(configuration, group, {topic: FilterExpression()}, 5)
    consumer.startup()
    try:
        for _ in range(20):
            for one in consumer.receive(16, 30):
                consumer.ack(one)
                if one.message_id == sent:
                    return bytes(one.body).decode()
    finally:
        consumer.shutdown()
    return "nothing received"


def main() -> None:
    """Run all cases."""
    seen = []
    for case in json.loads(sys.argv[1]):
        try:
            seen.append(run(*case))
        except Exception as error:
            seen.append(f"{type(error).__name__} {getattr(error, 'code', '')} {error}")
    print(json.dumps(seen), flush=True)


main()
