"""Topics, groups and offsets as an operator types them, against a real broker in processes of its
own."""

from __future__ import annotations

import json
import os
import pty
import re
import shlex
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import click
import psutil
import pytest

import cometmq
from cometmq.cli.cheat import TASKS
from cometmq.cli.root import cli
from cometmq.tests.harness.cluster import Cluster, cometmq_command, temporary, wait_until

TYPES = ("normal", "fifo", "delay", "transaction", "mixed", "priority", "lite")


class Shell:
    """One broker, and commands typed at it."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._endpoint = cluster.node("single").ports["client"]

    def __call__(self, *words: str, code: int = 0) -> str:
        """What a command prints, on both streams; its exit code must be `code`."""
        arguments = (*words, "--endpoint", f"127.0.0.1:{self._endpoint}")
        done = self._cluster.run(*arguments, check=False)
        text = done.stdout + done.stderr
        assert done.returncode == code, text
        assert "Traceback" not in text
        return text

    @property
    def endpoint(self) -> str:
        return f"127.0.0.1:{self._endpoint}"

    def fed(self, text: str, *words: str, code: int = 0) -> str:
        """What a command prints that reads a text from a pipe, with its errors if it fails."""
        done = subprocess.run(
            [*cometmq_command(), *words, "--endpoint", self.endpoint],
            input=text,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert done.returncode == code, done.stderr
        return done.stdout + (done.stderr if code else "")

    def typed(self, answer: str, *words: str, code: int = 0) -> str:
        """The same at a terminal, where `answer` is typed."""
        ours, theirs = pty.openpty()
        try:
            os.write(ours, answer.encode())
            done = subprocess.run(
                [*cometmq_command(), *words, "--endpoint", f"127.0.0.1:{self._endpoint}"],
                stdin=theirs,
                capture_output=True,
                text=True,
                timeout=60,
                check=False,
            )
        finally:
            os.close(ours)
            os.close(theirs)
        assert done.returncode == code, done.stdout + done.stderr
        return done.stdout + done.stderr

    def to_closed_pipe(self, *words: str) -> str:
        """Return what a command prints on stderr if nothing reads its output (`| true`)."""
        reader, writer = os.pipe()
        os.close(reader)
        try:
            done = subprocess.run(
                [*cometmq_command(), *words, "--endpoint", f"127.0.0.1:{self._endpoint}"],
                stdin=subprocess.DEVNULL,
                stdout=writer,
                stderr=subprocess.PIPE,
                text=True,
                timeout=60,
                check=False,
            )
        finally:
            os.close(writer)
        return done.stderr

    @contextmanager
    def paused(self) -> Iterator[None]:
        """The broker hangs inside."""
        pid = self._cluster.node("single").pid
        os.kill(pid, signal.SIGSTOP)
        try:
            yield
        finally:
            os.kill(pid, signal.SIGCONT)

    @property
    def endpoints(self) -> str:
        """For clients."""
        return f"127.0.0.1:{self._endpoint}"

    def help(self) -> str:
        """What `cometmq --help` prints."""
        return self._cluster.run("--help").stdout

    def start(
        self, *words: str, stdout: int = subprocess.PIPE, env: dict[str, str] | None = None
    ) -> subprocess.Popen[str]:
        """Start a command."""
        return subprocess.Popen(
            [*cometmq_command(), *words, "--endpoint", f"127.0.0.1:{self._endpoint}"],
            stdin=subprocess.DEVNULL,
            stdout=stdout,
            stderr=subprocess.STDOUT,
            text=True,
            env=env,
        )

    def json(self, *words: str) -> Any:
        """The document that a command prints."""
        return json.loads(self(*words, "-o", "json"))


@pytest.fixture(scope="module")
def shell() -> Iterator[Shell]:
    with temporary("--single") as cluster:
        yield Shell(cluster)


@pytest.mark.parametrize("kind", TYPES)
def test_a_topic_of_every_type_can_be_created(shell: Shell, kind: str) -> None:
    told = shell("topic", "create", f"type-{kind}", "--type", kind, "--queues", "3")
    assert told == f"Created topic type-{kind}: {kind}, 3 queues.\n"
    found = shell.json("topic", "describe", f"type-{kind}")
    assert (found["type"], len(found["queues"])) == (kind, 3)
    assert found["attributes"] == {"message.type": kind.upper()}


@pytest.mark.parametrize(
    ("kind", "options"),
    [
        ("normal", ()),
        ("fifo", ("--group", "a")),
        ("delay", ("--delay", "1")),
        ("priority", ("--priority", "2")),
        ("lite", ("--lite-topic", "chat")),
        ("mixed", ("--group", "a")),
    ],
)
def test_every_type_can_be_sent(shell: Shell, kind: str, options: tuple[str, ...]) -> None:
    shell("topic", "create", f"send-{kind}", "--type", kind, "--queues", "3")
    sent = shell.json("message", "send", f"send-{kind}", "body", *options)
    assert (sent["sent"], sent["failed"]) == (1, 0)
    if kind not in ("normal", "mixed"):
        needed = shell("message", "send", f"send-{kind}", "body", code=2)
        assert f"requires {options[0]}" in needed


def lines(shell: Shell, *words: str) -> list[Any]:
    """The messages that `message tail` prints."""
    printed = shell("message", "tail", *words, "-o", "json").splitlines()
    return [json.loads(line) for line in printed if line.startswith("{")]


def test_a_send_prints_the_queue_that_holds_the_message(shell: Shell) -> None:
    shell("topic", "create", "queues", "--queues", "4")
    sent = [shell.json("message", "send", "queues", "x")["messages"][0] for _ in range(3)]
    sent += shell.json("message", "send", "queues", "x", "--count", "4")["messages"]
    stored = lines(shell, "queues", "--from", "beginning", "--count", "7", "--timeout", "30")
    names = ("message_id", "queue", "offset")
    assert {tuple(one[name] for name in names) for one in sent} == {
        tuple(one[name] for name in names) for one in stored
    }
    assert {one["queue"] for one in sent} == {0, 1, 2, 3}


def test_commands_end_quietly_when_their_output_is_not_read(shell: Shell) -> None:
    shell("topic", "create", "piped", "--queues", "8")
    shell("message", "send", "piped", "body", "--count", "40")
    for words in (
        ("message", "tail", "piped", "--from", "beginning"),
        ("message", "tail", "piped", "--from", "beginning", "-o", "json"),
        ("consume", "pipers", "piped", "--count", "40"),
        ("message", "get", "piped", "0", "0"),
        ("message", "send", "piped", "body", "--count", "40"),
        ("topic", "list"),
        ("top", "--once"),
    ):
        said = [
            line
            for line in shell.to_closed_pipe(*words).splitlines()
            if not line.startswith(("Following", "cometmq: Received"))
        ]
        assert said == [], words


def test_a_tail_names_its_start_and_creates_no_group(shell: Shell) -> None:
    shell("topic", "create", "tailed", "--queues", "1")
    shell("message", "send", "tailed", "body", "--count", "5")
    none = shell("message", "tail", "tailed", "--timeout", "0.2")
    assert none == (
        "Following topic tailed (1 queue) from the end. Use `--from beginning` for the messages"
        " that are stored already.\n"
    )
    some = lines(shell, "tailed", "--from", "3", "--count", "2", "--timeout", "30")
    assert [one["offset"] for one in some] == [3, 4]
    recent = lines(shell, "tailed", "--from", "-1h", "--count", "5", "--timeout", "30")
    assert [one["offset"] for one in recent] == [0, 1, 2, 3, 4]
    after = str(recent[-1]["stored_ms"] + 1)
    assert lines(shell, "tailed", "--from", after, "--timeout", "0.2") == []
    assert "is not a time" in shell("message", "tail", "tailed", "--from", "then", code=2)
    groups = [row["group"] for row in shell.json("group", "list", "--system")]
    assert not [name for name in groups if "tail" in name or "TOOLS" in name]


def test_ctrl_c_ends_a_long_send_with_the_number_of_sent_messages(shell: Shell) -> None:
    shell("topic", "create", "many", "--queues", "1")
    before = 0
    for _ in range(3):
        sending = shell.start("message", "send", "many", "x", "--count", "1000000")

        def stored() -> int:
            return int(shell.json("topic", "describe", "many")["queues"][0]["messages"])

        wait_until("messages are stored", lambda before=before: stored() > before)
        sending.send_signal(signal.SIGINT)
        text, _ = sending.communicate(timeout=30)
        assert sending.returncode == 130
        found = re.fullmatch(
            r"Sent (\d+) of 1000000 messages in .* s; interrupted"
            r"(?:, (\d+) in flight were not answered)?\.\n",
            text,
        )
        assert found is not None, text
        sent, unknown = int(found[1]), int(found[2] or 0)
        assert sent <= stored() - before <= sent + unknown
        before = stored()


def test_ctrl_c_ends_a_long_send_without_the_answers_of_a_broker_that_hangs(shell: Shell) -> None:
    shell("topic", "create", "hanging", "--queues", "1")
    sending = shell.start("message", "send", "hanging", "x", "--count", "1000000")
    wait_until(
        "messages are stored",
        lambda: int(shell.json("topic", "describe", "hanging")["queues"][0]["messages"]),
    )
    with shell.paused():
        process, used = psutil.Process(sending.pid), -1.0
        while used < (used := sum(process.cpu_times()[:2])):  # until it waits for answers
            time.sleep(0.5)
        sending.send_signal(signal.SIGINT)
        text, _ = sending.communicate(timeout=30)
    assert sending.returncode == 130
    assert re.search(r"; interrupted, [1-9]\d* in flight were not answered\.\n$", text), text


def test_create_keeps_the_type_of_an_existing_topic(shell: Shell) -> None:
    shell("topic", "create", "typed", "--type", "NORMAL")
    told = shell("topic", "create", "typed", "--type", "Fifo", code=1)
    assert "exists with type normal" in told
    assert "`cometmq topic alter typed --type fifo`" in told
    assert shell.json("topic", "describe", "typed")["type"] == "normal"
    shell("topic", "alter", "typed", "--type", "FIFO")
    assert shell.json("topic", "describe", "typed")["type"] == "fifo"


def test_the_advice_for_a_missing_topic_names_its_type(shell: Shell) -> None:
    told = shell("message", "send", "nowhere", "x", "--group", "g", code=4)
    assert "`cometmq topic create nowhere --type fifo`" in told
    told = shell("message", "send", "nowhere", "x", code=4)
    assert "`cometmq topic create nowhere`" in told


def test_a_narrow_terminal_cuts_no_names(shell: Shell) -> None:
    name = "a-consumer-group-with-a-long-name-" + "x" * 60
    shell("group", "create", name)
    ours, theirs = pty.openpty()
    try:
        listed = shell.start("group", "list", stdout=theirs, env={**os.environ, "COLUMNS": "80"})
        assert listed.wait(60) == 0
        text = os.read(ours, 1 << 16).decode()
    finally:
        os.close(ours)
        os.close(theirs)
    assert name in text


def test_times_are_readable_in_tables_and_accepted_in_options(shell: Shell) -> None:
    shell("topic", "create", "times", "--queues", "1")
    shell("message", "send", "times", "x", "--key", "k")
    assert re.search(r"\d{4}-\d\d-\d\d \d\d:\d\d", shell("topic", "describe", "times"))
    found = shell("message", "query", "--topic", "times", "--key", "k", "--begin", "-1h")
    assert re.search(r"\d{4}-\d\d-\d\d \d\d:\d\d", found)
    shell("message", "query", "--topic", "times", "--key", "k", "--end", "2020-01-01", code=4)
    shell("group", "create", "reader")
    plan = shell.json("offset", "reset", "reader", "times", "2020-01-01T00:00", "--dry-run")
    assert [row["after"] for row in plan["changes"]] == [0]


def test_offsets_of_an_unknown_topic_are_not_found(shell: Shell) -> None:
    shell("group", "create", "seeker")
    assert "TOPIC_NOT_FOUND" in shell("offset", "show", "seeker", "unknown", code=4)
    shell("topic", "create", "unread")
    assert "has no offsets on topic unread yet" in shell("offset", "show", "seeker", "unread")


def test_a_topic_is_created_altered_and_deleted(shell: Shell) -> None:
    made = shell(
        "topic", "create", "life", "--type", "lite", "--attribute", "+lite.topic.expiration=60"
    )
    assert made == "Created topic life: lite, 8 queues.\n"
    assert "Unchanged topic life: lite, 8 queues." in shell("topic", "create", "life")
    looked = shell("topic", "alter", "life", "--perm", "read", "--dry-run")
    assert looked == "Would change topic life: lite, 8 queues, permission: read.\n"
    altered = shell(
        *("topic", "alter", "life", "--write-queues", "2", "--perm", "none"),
        *("--attribute", "-lite.topic.expiration"),
    )
    assert "Changed topic life: lite, 2 write queues, 8 read queues, permission: none." in altered
    listed = {row["topic"]: row for row in shell.json("topic", "list")}
    assert (listed["life"]["write_queues"], listed["life"]["permission"]) == (2, "none")
    assert "--write-queues" in shell(
        *("topic", "alter", "life", "--queues", "9", "--write-queues", "9"), code=2
    )
    assert "BAD_REQUEST" in shell("topic", "alter", "life", "--attribute", "+odd=1", code=1)
    assert "TOPIC_NOT_FOUND" in shell("topic", "alter", "unknown", "--perm", "rw", code=4)
    assert "ILLEGAL_TOPIC" in shell("topic", "create", "rmq_sys_mine", code=1)
    assert "Deleted topic life." in shell("topic", "delete", "life")
    assert "TOPIC_NOT_FOUND" in shell("topic", "describe", "life", code=4)
    assert "TOPIC_NOT_FOUND" in shell("topic", "delete", "life", code=4)


def test_deleting_a_topic_with_messages_requires_accept_loss(shell: Shell) -> None:
    shell("topic", "create", "full", "--queues", "1")
    shell("message", "send", "full", "body", "--count", "3")
    plan = shell("topic", "delete", "full", "--dry-run")
    assert "messages                  3" in plan
    assert shell.json("topic", "delete", "full", "--dry-run")["messages"] == 3
    assert "--accept-loss" in shell("topic", "delete", "full", code=1)
    assert "Deleted topic full." in shell("topic", "delete", "full", "--accept-loss")
    shell("topic", "create", "full", "--queues", "1")
    (queue,) = shell.json("topic", "describe", "full")["queues"]
    assert (queue["min_offset"], queue["max_offset"], queue["messages"]) == (3, 3, 0)


def test_a_group_is_created_altered_and_deleted(shell: Shell) -> None:
    made = shell("group", "create", "crew", "--order", "true", "--max-attempts", "3")
    assert made == "Created group crew: in order, 3 attempts.\n"
    again = shell.json("group", "create", "crew")
    assert (again["order"], again["max_attempts"], again["created"]) == (True, 3, False)
    curve = ("--retry-policy", "exponential", "--retry-initial", "2s", "--retry-max", "1m")
    assert "Would change group crew: concurrently" in shell(
        "group", "alter", "crew", "--order", "false", *curve, "--dry-run"
    )
    shell("group", "alter", "crew", "--order", "false", *curve, "--retry-multiplier", "3")
    found = shell.json("group", "describe", "crew")
    assert (found["order"], found["retry_policy"]) == (False, "exponential: 2s x3 up to 1m")
    shell("group", "alter", "crew", "--retry-policy", "customized", "--retry-delays", "1s,500ms,2h")
    assert "customized: 1s, 500ms, 2h" in shell("group", "describe", "crew")
    shell("group", "alter", "crew", "--retry-policy", "customized")
    assert "the broker's table" in shell("group", "describe", "crew")
    off = shell(
        *("group", "alter", "crew", "--consume-enable", "false"),
        *("--attribute", "+priority.factor=30"),
    )
    assert "consumption is off" in off
    assert shell.json("group", "describe", "crew")["attributes"] == {"priority.factor": "30"}
    assert {"lag", "in_flight", "retries", "dead_letters"} <= shell.json("group", "list")[0].keys()
    assert "need --retry-policy" in shell("group", "create", "x", "--retry-max", "1s", code=2)
    assert "needs --retry-policy" in shell("group", "create", "x", "--retry-delays", "1s", code=2)
    assert "not a duration" in shell("group", "create", "x", *curve[:-1], "soon", code=2)
    assert "CONSUMER_GROUP_NOT_FOUND" in shell("group", "alter", "x", "--order", "true", code=4)
    assert "Deleted group crew." in shell("group", "delete", "crew")
    assert "CONSUMER_GROUP_NOT_FOUND" in shell("group", "describe", "crew", code=4)


def test_offsets_are_shown_and_reset(shell: Shell) -> None:
    shell("topic", "create", "replay", "--queues", "1")
    shell("group", "create", "readers")
    shell("message", "send", "replay", "old", "--count", "2")
    time.sleep(0.01)  # so that a time lies between the two sends
    between_ms = time.time_ns() // 1_000_000
    time.sleep(0.01)
    shell("message", "send", "replay", "new", "--count", "2")
    assert "has no offsets yet" in shell("offset", "show", "readers")
    # A queue without an offset is read from its first message on: `latest` skips its messages.
    moved = ("offset", "reset", "readers", "replay")
    planned = shell.json(*moved, "latest", "--dry-run")
    assert (planned["skipped"], planned["consumed_again"]) == (4, 0)
    assert planned["changes"][0]["skipped"] == 4
    assert "0 messages are consumed again, 4 are skipped" in shell(*moved, "latest")
    assert "4 messages are consumed again, 0 are skipped" in shell(*moved, "earliest")
    for where, after in (
        (str(between_ms), 2),
        ("0", 0),
        ("earliest", 0),
        ("latest", 4),
        ("-1", 4),
    ):
        plan = shell.json("offset", "reset", "readers", "replay", where, "--dry-run")
        assert [row["after"] for row in plan["changes"]] == [after], where
        assert "Reset group readers" in shell("offset", "reset", "readers", "replay", where)
        (row,) = shell.json("offset", "show", "readers", "replay")
        assert (row["consumer_offset"], row["lag"]) == (after, 4 - after)
    shell("offset", "reset", "readers", "replay", "--offset", "3", "--queue", "0")
    assert shell.json("group", "describe", "readers")["lag"] == 1
    assert "ILLEGAL_OFFSET" in shell(
        "offset", "reset", "readers", "replay", "--offset", "9", code=1
    )
    assert "is not a time" in shell("offset", "reset", "readers", "replay", "noon", code=2)
    assert "Give the position" in shell("offset", "reset", "readers", "replay", code=2)
    assert "TOPIC_NOT_FOUND" in shell("offset", "reset", "readers", "unknown", "0", code=4)
    (plan,) = shell.json(*moved, "--shift", "-2", "--dry-run")["changes"]
    assert (plan["before"], plan["after"]) == (3, 1)
    assert shell.json("group", "describe", "readers")["lag"] == 1
    assert "Reset group readers" in shell(*moved, "--shift", "-2")
    assert shell.json("group", "describe", "readers")["lag"] == 3
    (plan,) = shell.json(*moved, "--shift", "100")["changes"]
    assert plan["after"] == 4  # the end of the queue
    shell("group", "create", "others")
    like = ("offset", "reset", "others", "replay", "--like", "readers")
    assert re.search(r"before +after", shell(*like, "--dry-run"))
    shell(*moved, "--offset", "1")
    assert "Reset group others" in shell(*like)
    assert shell.json("group", "describe", "others")["lag"] == 3
    assert "strangers does not exist" in shell(*like[:-1], "strangers", code=4)
    assert "Give the position" in shell(*moved, "latest", "--shift", "1", code=2)
    for when in ("0", "-1h"):
        reset = ("offset", "reset", "missing", "replay", when)
        assert "CONSUMER_GROUP_NOT_FOUND" in shell(*reset, code=4)


def test_a_shift_of_lite_topics_is_refused_with_what_works(shell: Shell) -> None:
    shell("topic", "create", "rooms", "--type", "lite", "--queues", "1")
    shell("group", "create", "talkers", "--attribute", "+lite.bind.topic=rooms")
    shell("message", "send", "rooms", "x", "--lite-topic", "one")
    reset = ("offset", "reset", "talkers", "rooms")
    shell(*reset, "earliest")
    said = shell(*reset, "--shift", "1", "--dry-run", code=2)
    assert "are reset to a time, an edge or an offset only" in said


def test_mqadmin_names_work_and_are_not_listed(shell: Shell) -> None:
    where = ("-n", "127.0.0.1:9876", "-c", "DefaultCluster")
    made = shell(
        "updateTopic", *where, "-t", "mq", "-r", "4", "-w", "4", "-a", "+message.type=FIFO"
    )
    assert made == "Created topic mq: fifo, 4 queues.\n"
    assert "permission: read" in shell("updateTopicPerm", *where, "-t", "mq", "-p", "4")
    assert "permission" not in shell("updateTopicPerm", *where, "-t", "mq", "-p", "7")
    assert "mq" in shell("topicList", *where)
    assert "min offset" in shell("topicStatus", *where, "-t", "mq")
    group = shell("updateSubGroup", *where, "-g", "mqg", "-o", "true", "-r", "3", "-s", "true")
    assert group == "Created group mqg: in order, 4 attempts.\n"
    assert "max attempts    4" in shell("getConsumerConfig", *where, "-g", "mqg")
    assert "mqg" in shell("consumerProgress", *where)
    assert "has no offsets" in shell("consumerProgress", *where, "-g", "mqg", "-t", "mq")
    reset = ("resetOffsetByTime", *where, "-g", "mqg", "-t", "mq", "-s")
    for moment in ("now", "-1", "-3600000", "0", "2026-01-01#00:00:00:000"):
        assert "Reset group mqg" in shell(*reset, moment)
    assert "is not now" in shell(*reset, "noon", code=2)
    assert "Reset group mqg" in shell("skipAccumulatedMessage", *where, "-g", "mqg", "-t", "mq")
    assert "Deleted group" in shell("deleteSubGroup", *where, "-g", "mqg", "-r", "true")
    assert "Deleted topic" in shell("deleteTopic", *where, "-t", "mq")
    assert "updateTopic" not in shell.help()


def test_mqadmin_names_for_messages_and_state_work(shell: Shell, tmp_path: Path) -> None:
    where = ("-n", "127.0.0.1:9876")
    cluster = (*where, "-c", "DefaultCluster")
    shell("updateTopic", *cluster, "-t", "named", "-r", "1", "-w", "1")
    for name in ("from", "to"):
        shell("updateSubGroup", *cluster, "-g", f"clone-{name}")
    topic = (*where, "-t", "named")
    sent = ("sendMessage", *topic, "-p", "hello", "-k", "k1 k2", "-c", "TagA")
    assert "message id" in shell(*sent)
    assert "omit -b and -i" in shell(*sent, "-i", "1", code=2)
    (found,) = json.loads(shell("queryMsgByKey", *topic, "-k", "k2", "--output", "json"))
    assert (found["body"], found["tag"]) == ("hello", "TagA")
    unique_id = found["message_id"]
    assert unique_id in shell("queryMsgByUniqueKey", *topic, "-i", unique_id)
    assert unique_id in shell("queryMsgById", *topic, "-i", found["offset_id"])
    at = ("queryMsgByOffset", *topic, "-b", "broker-a", "-i", "0", "-o")
    assert unique_id in shell(*at, "0")
    assert "has no message 7" in shell(*at, "7", code=4)
    assert "has no queue 5" in shell("message", "get", "named", "5", "0", code=4)
    assert unique_id in shell("queryMsgTraceById", *topic, "-i", unique_id)
    assert "hello" in shell("printMsg", *topic)
    assert "hello" in shell("consumeMessage", *topic, "-c", "1")
    shell("offset", "reset", "clone-from", "named", "latest")
    cloned = shell("cloneGroupOffset", *topic, "-s", "clone-from", "-d", "clone-to")
    assert "Reset group clone-to" in cloned
    assert "min offset" in shell("topicRoute", *topic)
    assert "min offset" in shell("topicClusterList", *topic)
    assert "leader" in shell("clusterList", *where)
    assert "leader" in shell("brokerStatus", *where, "-b", "127.0.0.1:10911")
    assert "clone-to" in shell("statsAll", *where)
    assert "brokerName" in shell("getBrokerConfig", *cluster)
    changed = shell("updateBrokerConfig", *where, "-k", "fileReservedTime", "-v", "71", "--yes")
    assert "fileReservedTime" in changed
    assert "clone-to" in shell("consumerConnection", *where, "-g", "clone-to")
    assert "clone-to" in shell("consumerStatus", *where, "-g", "clone-to", "-s", "false")
    assert "clone-to" in shell("brokerConsumeStats", *where, "-b", "127.0.0.1:10911")
    for command in ("wipeWritePerm", "addWritePerm"):  # producers cannot leave the only group
        assert "one broker group" in shell(command, *where, "-b", "broker-a", code=2)
    shell("exportMetadata", *cluster, "-f", str(tmp_path / "files"))
    assert "named" in (tmp_path / "files" / "metadata.json").read_text()


def test_connected_producers_are_listed(shell: Shell) -> None:
    shell("topic", "create", "produced")
    with cometmq.sync.Producer(shell.endpoints) as producer:
        producer.send("produced", b"hello")
        rows = shell.json("client", "list", "--producers")
        # Those of other tests may still be known.
        assert {(row["kind"], row["protocol"]) for row in rows} == {("producer", "grpc")}
        assert rows[0]["client_id"] in shell("producer", "-b", "127.0.0.1:10911")
    none = shell("producerConnection", "-n", "a:1", "-g", "none", "-t", "produced")
    assert none == "No client is connected.\n"


def test_settings_change_at_run_time(shell: Shell) -> None:
    assert "diskMaxUsedSpaceRatio" in shell(
        "config", "set", "diskMaxUsedSpaceRatio=80", "--dry-run"
    )
    shell("config", "set", "diskMaxUsedSpaceRatio=80", "maxTopics=90000", "--yes")
    rows = {row["key"]: row for row in shell.json("config", "show", "--origin")}
    assert rows["diskMaxUsedSpaceRatio"] == {
        "key": "diskMaxUsedSpaceRatio",
        "value": "80",
        "origin": "run time",
    }
    assert "already" in shell("config", "set", "maxTopics=90000")
    refused = shell("config", "set", "maxTopics=1", "brokerName=other", code=1)
    assert "brokerName: read at the start of the broker" in refused
    assert "is not KEY=VALUE" in shell("config", "set", "maxTopics", code=2)


def test_destructive_commands_ask_on_a_terminal(shell: Shell) -> None:
    shell("topic", "create", "precious")
    assert "Delete topic precious? [y/N]" in shell.typed(
        "n\n", "topic", "delete", "precious", code=130
    )
    assert shell.json("topic", "describe", "precious")["type"] == "normal"
    shell("group", "create", "precious")
    asked = shell.typed("y\n", "offset", "reset", "precious", "precious", "latest")
    assert "to these offsets? [y/N]" in asked
    shell("group", "delete", "precious", "--yes")
    assert "Deleted topic" in shell.typed("y\n", "topic", "delete", "precious")


def numbers_as_text(document: Any, path: str = "") -> Iterator[str]:
    """The places where a document has a number as text."""
    if isinstance(document, dict):
        for name, value in document.items():
            yield from numbers_as_text(value, f"{path}.{name}")
    elif isinstance(document, list):
        for value in document:
            yield from numbers_as_text(value, path)
    elif isinstance(document, str) and re.fullmatch(r"-?[0-9]+(\.[0-9]+)?", document):
        yield path


def test_documents_have_numbers_and_yaml_has_the_same_fields(shell: Shell) -> None:
    shell("topic", "create", "formed", "--queues", "2")
    shell("group", "create", "formers")
    shell("message", "send", "formed", "body", "--tag", "formed", "--key", "k")
    shell("offset", "reset", "formers", "formed", "latest")
    for words in (
        ("topic", "list"),
        ("topic", "describe", "formed"),
        ("group", "list"),
        ("group", "describe", "formers"),
        ("offset", "show", "formers"),
        ("message", "query", "--topic", "formed", "--tag", "formed"),
        ("cluster", "describe"),
        ("offset", "reset", "formers", "formed", "-1h", "--dry-run"),
    ):
        document = shell.json(*words)
        assert list(numbers_as_text(document)) == []
        first = document[0] if isinstance(document, list) else document
        fields = re.findall(r"^(?:- |  )?(\w+):", shell(*words, "-o", "yaml"), re.MULTILINE)
        assert set(first) <= set(fields)


def test_times_are_read_and_printed_in_utc_on_request(shell: Shell) -> None:
    shell("topic", "create", "timed", "--queues", "1")
    shell("message", "send", "timed", "body", "--tag", "timed")
    query = ("message", "query", "--topic", "timed", "--tag", "timed")
    (stored,) = (row["stored_ms"] for row in shell.json(*query))
    moment = datetime.fromtimestamp(stored / 1_000, UTC)
    shown = shell(*query, "--utc")
    assert moment.isoformat(" ", "milliseconds") in shown
    bare = moment.replace(tzinfo=None)
    before, after = (bare - timedelta(hours=1)).isoformat(), (bare + timedelta(1)).isoformat()
    assert len(shell.json(*query, "--utc", "--begin", before, "--end", after)) == 1
    assert "No message found" in shell(*query, "--utc", "--begin", after, code=4)
    assert len(shell.json(*query, "--begin", "-1h", "--end", "+30s")) == 1


def test_a_message_of_the_sdk_goes_to_its_lite_topic_and_the_sdk_is_named(shell: Shell) -> None:
    shell("topic", "create", "rooms", "--type", "lite")
    with cometmq.sync.Producer(shell.endpoint, topics=["rooms"]) as producer:
        sent = producer.send("rooms", b"hello", lite_topic="room-1")
        listed = shell.json("client", "list", "--producers")
    assert f"(cometmq {cometmq.__version__})" in listed[0]["version"]
    found = shell.json("message", "query", "--topic", "rooms", "--unique-key", sent.message_id)
    assert [one["body"] for one in found] == ["hello"]


def test_lines_and_places_make_many_messages(shell: Shell) -> None:
    shell("topic", "create", "placed", "--queues", "1")
    shell("message", "send", "placed", "body {{n}}", "--key", "k-{{n}}", "--count", "3")
    shell.fed("one\ntwo {{n}}\n", "message", "send", "placed", "--lines", "--key", "l-{{n}}")
    stored = lines(shell, "placed", "--from", "beginning", "--count", "5", "--timeout", "30")
    assert [(one["body"], one["keys"]) for one in stored] == [
        ("body 1", ["k-1"]),
        ("body 2", ["k-2"]),
        ("body 3", ["k-3"]),
        ("one", ["l-1"]),
        ("two {{n}}", ["l-2"]),
    ]


def test_lines_that_are_refused_are_named_and_do_not_stop_the_others(shell: Shell) -> None:
    shell("topic", "create", "fed", "--queues", "1")
    said = shell.fed("one\n\ntwo\n\n", "message", "send", "fed", "--lines", code=1)
    assert "Sent 2 of 4 messages" in said
    assert "cometmq: 2 (messages 2, 4) not acknowledged: the body is empty" in said


def test_a_delayed_send_prints_its_time_and_the_handle_that_recalls_it(shell: Shell) -> None:
    shell("topic", "create", "later", "--type", "delay")
    (sent,) = shell.json("message", "send", "later", "x", "--delay", "1h")["messages"]
    assert sent["due_ms"] > time.time() * 1_000
    assert "offset" not in sent  # it gets a queue and an offset when it is due
    shell("timer", "recall", "later", sent["recall_handle"])
    assert re.search(
        r"recall handle +\S{40}", shell("message", "send", "later", "x", "--delay", "1h")
    )


def test_lists_begin_with_what_matters(shell: Shell) -> None:
    shell("topic", "create", "listed", "--queues", "1")
    shell("group", "create", "behind")
    shell("message", "send", "listed", "x", "--count", "4")
    shell("consume", "behind", "listed", "--count", "1", "--timeout", "30")
    groups = shell.json("group", "list")
    assert [row["lag"] for row in groups] == sorted((row["lag"] for row in groups), reverse=True)
    assert list(groups[0])[:2] == ["group", "lag"]
    (topic,) = [row for row in shell.json("topic", "list") if row["topic"] == "listed"]
    assert topic["messages"] == 4
    assert topic["last_write_ms"] > 0
    changed = shell.json("config", "show", "--changed")
    assert {row["key"] for row in changed} >= {"brokerIP1", "bindAddress"}
    assert all(row["origin"] != "default" for row in changed)


def test_the_shell_completes_names_of_the_cluster(
    shell: Shell, monkeypatch: pytest.MonkeyPatch
) -> None:
    shell("topic", "create", "completed")
    shell("group", "create", "completing")
    monkeypatch.setenv("COMETMQ_ENDPOINT", shell.endpoint)
    monkeypatch.setenv("_COMETMQ_COMPLETE", "bash_complete")
    for words, name in (("topic describe comp", "completed"), ("dlq ls comp", "completing")):
        monkeypatch.setenv("COMP_WORDS", f"cometmq {words}")
        monkeypatch.setenv("COMP_CWORD", "3")
        done = subprocess.run(
            cometmq_command(), capture_output=True, text=True, timeout=60, check=False
        )
        assert done.stdout == f"plain,{name}\n", done.stderr


def test_the_most_needed_commands_exist() -> None:
    for commands in TASKS.values():
        for command in commands:
            line = command.rpartition("| ")[2]
            words, context = shlex.split(line)[1:], click.Context(cli)
            found: click.Command = cli
            while isinstance(found, click.Group) and words:
                following = found.get_command(context, words[0])
                if following is None:
                    break
                found = following
                words.pop(0)
            found.make_context(line, words, resilient_parsing=False)
            assert len(command) <= 78
