"""`cometmq consume` as a process against a real broker: prints, acknowledges, stops on Ctrl-C."""

from __future__ import annotations

import json
import signal
import subprocess
from collections.abc import Iterator
from typing import Any

import click
import pytest

import cometmq
from cometmq.cli.message.format import formatted, parse
from cometmq.client.message import Message
from cometmq.tests.harness.cluster import Cluster, cometmq_command, temporary, wait_until


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with temporary("--single") as found:
        yield found


def run(cluster: Cluster, *words: str, code: int = 0) -> str:
    done = cluster.run(*words, "--endpoint", cluster.endpoints, check=False)
    assert done.returncode == code, done.stdout + done.stderr
    assert "Traceback" not in done.stderr
    return done.stdout + done.stderr


def lag(cluster: Cluster, group: str) -> Any:
    return json.loads(run(cluster, "group", "describe", group, "-o", "json"))["lag"]


def sent(cluster: Cluster, topic: str, count: int) -> None:
    run(cluster, "topic", "create", topic, "--queues", "1")
    run(cluster, "group", "create", f"{topic}-readers")
    run(cluster, "message", "send", topic, "hello", "--key", "k", "--count", str(count))


def test_messages_are_printed_in_a_format_and_acknowledged(cluster: Cluster) -> None:
    sent(cluster, "formatted", 3)
    consume = ("consume", "formatted-readers", "formatted", "-f", "%t %p %o %k %s\\n")
    first = run(cluster, *consume, "--count", "2")
    assert first == (
        "formatted 0 0 k hello\nformatted 0 1 k hello\ncometmq: Consumed 2 messages.\n"
    )
    wait_until("two are acknowledged", lambda: lag(cluster, "formatted-readers") == 1)
    # The topic is that of the group.
    rest = run(cluster, "consume", "formatted-readers", "--count", "1", "-o", "json")
    (line, sentence) = rest.splitlines()
    document = json.loads(line)
    assert (document["body"], document["attempt"], document["offset"]) == ("hello", 1, 2)
    assert sentence == "cometmq: Consumed 1 message."
    wait_until("it is acknowledged", lambda: lag(cluster, "formatted-readers") == 0)
    silent = run(cluster, "consume", "formatted-readers", "--timeout", "1s")
    assert silent == "cometmq: Consumed 0 messages.\n"


def test_ctrl_c_stops_a_waiting_consumer_and_tells_what_it_did(cluster: Cluster) -> None:
    sent(cluster, "interrupted", 1)
    words = ("consume", "interrupted-readers", "interrupted", "--endpoint", cluster.endpoints)
    with subprocess.Popen(
        [*cometmq_command(), *words],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            assert process.stdout is not None
            assert "hello" in process.stdout.readline()
            wait_until("it is acknowledged", lambda: lag(cluster, "interrupted-readers") == 0)
            process.send_signal(signal.SIGINT)
            _, errors = process.communicate(timeout=60)
        finally:
            process.kill()
    assert process.returncode == 130
    assert errors == "cometmq: Consumed 1 message.\n"


def documents(cluster: Cluster, *words: str) -> Any:
    return json.loads(run(cluster, *words, "-o", "json"))


def dead_lettered(cluster: Cluster, topic: str, group: str, count: int) -> None:
    """Send messages, and let their only attempt fail."""
    run(cluster, "topic", "create", topic, "--queues", "1")
    run(cluster, "group", "create", group, "--max-attempts", "1")
    for number in range(count):
        run(cluster, "message", "send", topic, f"body {number}", "--key", f"k{number}")
    with cometmq.sync.SimpleConsumer(cluster.endpoints, group=group, topics=topic) as consumer:
        failed = 0
        while failed < count:
            for message in consumer.receive(wait=1):
                consumer.nack(message)
                failed += 1

        def letters() -> bool:
            consumer.receive(wait=1)
            return {"group": group, "dead_letters": count} in documents(cluster, "dlq", "ls")

        wait_until("the messages are dead letters", letters)


def test_dead_letters_are_listed_and_sent_again_once(cluster: Cluster) -> None:
    dead_lettered(cluster, "failing", "failers", 3)
    assert "failers" in run(cluster, "dlq", "ls")
    letters = documents(cluster, "dlq", "ls", "failers")
    assert sorted(row["body"] for row in letters) == ["body 0", "body 1", "body 2"]
    assert {row["origin"] for row in letters} == {"failing"}
    one = letters[0]["message_id"]
    assert documents(cluster, "dlq", "ls", "failers", "--id", one) == letters[:1]
    assert "has no matching dead letters" in run(cluster, "dlq", "ls", "failers", "--begin", "+1h")
    said = run(cluster, "dlq", "ls", "failers", "--id", one, "--id", "nothing", code=1)
    assert one in said
    assert "no matching dead letter nothing." in said
    plan = documents(cluster, "dlq", "redrive", "failers", "--dry-run")
    assert plan["changes"] == [{"topic": "failing", "to_send": 3, "sent_before": 0}]
    assert "Sent 1 of 1 messages again." in run(cluster, "dlq", "redrive", "failers", "--id", one)

    def is_indexed() -> bool:
        return bool(
            documents(cluster, "dlq", "redrive", "failers", "--dry-run")["changes"]
            == [{"topic": "failing", "to_send": 2, "sent_before": 1}]
        )

    wait_until("the copy is in the index", is_indexed)
    assert "Sent 2 of 2 messages again." in run(cluster, "dlq", "redrive", "failers")
    again = run(cluster, *("consume", "failers", "failing", "-f", "%s %k\\n", "--count", "3"))
    assert sorted(again.splitlines()[:3]) == ["body 0 k0", "body 1 k1", "body 2 k2"]


def test_the_story_of_a_message_names_its_state_in_each_group(cluster: Cluster) -> None:
    dead_lettered(cluster, "told", "told-failers", 1)
    (letter,) = documents(cluster, "dlq", "ls", "told-failers")
    run(cluster, "group", "create", "told-readers")
    run(cluster, "group", "create", "told-late")
    run(cluster, "offset", "reset", "told-late", "told", "earliest")
    run(cluster, "consume", "told-readers", "told", "--count", "1")
    story = ("message", "story", letter["message_id"], "--topic", "told")

    def state() -> dict[str, str]:
        return {row["group"]: row["state"] for row in documents(cluster, *story)["groups"]}

    wanted = {
        "told-failers": "dead letter",
        "told-readers": "offset is past it",
        "told-late": "waiting",
    }
    wait_until("the acknowledgement counts", lambda: state() == wanted)
    message = documents(cluster, *story)["message"]
    assert message["broker"] == "broker-a"
    assert (message["topic"], message["offset"], message["size"]) == ("told", 0, 6)
    assert "dead letter" in run(cluster, *story, "--group", "told-failers")
    said = run(cluster, *story, "--group", "told-failers", "--group", "nobody", code=1)
    assert "dead letter" in said
    assert "No state of nobody: " in said
    assert "No message" in run(cluster, *story[:2], "0" * 32, "--topic", "told", code=4)


def test_the_story_of_a_delayed_message_says_that_it_waits(cluster: Cluster) -> None:
    run(cluster, "topic", "create", "tomorrow", "--type", "delay", "--queues", "1")
    sent = documents(cluster, "message", "send", "tomorrow", "x", "--delay", "1d")
    message_id = sent["messages"][0]["message_id"]
    told = run(cluster, "message", "story", message_id, "--topic", "tomorrow", code=3)
    assert "It waits for its delivery time (2" in told


def test_what_is_missing_is_named(cluster: Cluster) -> None:
    run(cluster, "group", "create", "idle-readers")
    assert "has no dead letters" in run(cluster, "dlq", "ls", "idle-readers")
    assert "does not exist" in run(cluster, "dlq", "ls", "nobody", code=4)
    assert "has consumed no topic yet" in run(cluster, "consume", "idle-readers", code=2)
    absent = run(cluster, "consume", "idle-readers", "absent", "--timeout", "1", code=4)
    assert "absent" in absent
    assert "none of the letters" in run(cluster, "consume", "g", "t", "-f", "%z", code=2)


def test_settings_are_found_by_words(cluster: Cluster) -> None:
    def listed(*words: str, code: int = 0) -> str:
        done = cluster.run("config", "list", *words, check=False)
        assert done.returncode == code
        return done.stdout + done.stderr

    rows = json.loads(listed("--search", "Flush disk TYPE", "-o", "json"))
    assert "flushDiskType" in [row["key"] for row in rows]
    everything = json.loads(listed("-o", "json"))
    assert len(everything) > 150
    assert {"key": "listenPort", "default": 9876}.items() <= next(
        row for row in everything if row["key"] == "listenPort"
    ).items()
    assert "controllerPeers" in listed("--of", "namesrv")
    assert "No setting has the words" in listed("--search", "no such thing", code=4)


def test_a_format_writes_bodies_as_they_are() -> None:
    message = Message(
        *("t", b"\xff\x00", "id"), tag="g", keys=("a", "b"), properties={"x": "1"}, stored_ms=5
    )
    written = formatted(parse("%s|%S|%k|%h|%T|%i|%G|%%\\x41\\t\\0"), message)
    assert written == b"\xff\x00|2|a,b|x=1|5|id|g|%A\t\0"
    for text in ("%", "%z", "\\q", "\\"):
        with pytest.raises(click.BadParameter):
            parse(text)
