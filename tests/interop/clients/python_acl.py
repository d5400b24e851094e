"""The official Python client with credentials: sends a message and receives it, for each case.

    python_acl.py CASES

CASES is a JSON list of [endpoint, access key, secret key, topic, group]. Prints a JSON list: the
received body, or the error. TLS with `rocketmq.client.enableSsl=true` in the environment.
"""

import json
import os
import sys

from rocketmq import (
    ClientConfiguration,
    Credentials,
    FilterExpression,
    Message,
    Producer,
    SimpleConsumer,
)

TLS = os.environ["rocketmq.client.enableSsl"] == "true"  # noqa: SIM112 - the Go client's name


def run(endpoint: str, access_key: str, secret_key: str, topic: str, group: str) -> str:
    credentials = Credentials(access_key, secret_key)
    configuration = ClientConfiguration(endpoint, credentials, request_timeout=30)
    producer = Producer(configuration, (topic,), tls_enable=TLS)
    producer.startup()
    message = Message()
    message.topic = topic
    message.body = b"signed"
    sent = producer.send(message).message_id
    producer.shutdown()
    consumer = SimpleConsumer(configuration, group, {topic: FilterExpression()}, 5, tls_enable=TLS)
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
