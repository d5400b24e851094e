"""The commands of the first hour, run in the order of the guides beside a cluster."""

from __future__ import annotations

import os
import re
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from cometmq.tests.harness.cluster import Cluster, cometmq_command, temporary

AGAIN_S = 60.0
_ROOT = Path(__file__).resolve().parents[2]
README = _ROOT / "README.md"
#: (page, line of the page, what the line says instead of its placeholders, part of the output).
_LINES: tuple[tuple[str, str, dict[str, str], str], ...] = (
    ("README.md", "topic create orders --queues 8", {}, "Created topic orders"),
    ("README.md", "group create billing", {}, "Created group billing"),
    ("README.md", 'message send orders "hello" --tag new', {}, "message id"),
    ("README.md", "message tail orders --from beginning", {"ning": "ning --count 1"}, "hello"),
    ("README.md", "ha status        # leader", {}, "healthy"),
    ("README.md", "ha switchover    # a planned", {}, "leads epoch"),
    ("README.md", "doctor connect 127.0.0.1:8081", {"127.0.0.1:8081": "ENDPOINT"}, "is good"),
    ("docs/sdk.md", "topic create steps --type fifo", {}, "Created topic steps"),
    ("docs/sdk.md", "topic create payments --type transaction", {}, "Created topic payments"),
    (
        "docs/getting-started.md",
        "topic create NAME --type normal|fifo|delay|transaction|mixed|priority|lite --queues 8",
        {"|fifo|delay|transaction|mixed|priority|lite": "", "--queues 8": "--queues 1"},
        "Created topic NAME",
    ),
    (
        "docs/getting-started.md",
        "group create NAME --order true|false --max-attempts 16",
        {"|false": ""},
        "Created group NAME",
    ),
    ("docs/getting-started.md", "message send TOPIC BODY --tag T --key K", {"TOPIC": "NAME"}, "id"),
    (
        "docs/getting-started.md",
        "offset reset GROUP TOPIC TIME",
        {"GROUP": "billing", "TOPIC": "orders", "TIME": "-1h"},
        "Reset group billing",
    ),
    ("docs/getting-started.md", "message get TOPIC 0 12", {"TOPIC": "NAME", "12": "0"}, "BODY"),
    ("docs/getting-started.md", "timer ls TOPIC", {"TOPIC": "NAME"}, "No message waits."),
    ("docs/getting-started.md", "dlq ls GROUP", {"GROUP": "billing"}, "no dead letters"),
    (
        "docs/getting-started.md",
        "dlq redrive GROUP --dry-run",
        {"GROUP": "billing"},
        "no dead letters to send again",
    ),
    (
        "docs/getting-started.md",
        "consume GROUP TOPIC -f '%o %k %s\\n' --count 10",
        {"GROUP TOPIC": "billing orders", "10": "1"},
        "hello",
    ),
    ("docs/getting-started.md", "top", {"top": "top --once"}, "broker groups"),
    ("docs/getting-started.md", "healthcheck", {}, "is serving"),
    ("docs/getting-started.md", 'config list --search "flush disk"', {}, "flushDiskType"),
    ("docs/getting-started.md", "config show --origin", {}, "brokerName"),
    ("docs/getting-started.md", "context add dev --data ./data", {}, "Added context dev"),
    ("docs/getting-started.md", "context list", {}, "dev"),
    (
        "docs/getting-started.md",
        "topic create chats --type lite --attribute +lite.topic.expiration=1440",
        {},
        "Created topic chats",
    ),
    (
        "docs/getting-started.md",
        "group create readers --attribute +lite.bind.topic=chats",
        {},
        "Created group readers",
    ),
    (
        "docs/getting-started.md",
        "ha policy --sync --min-in-sync 2   # changes",
        {},
        "at least 2 in sync",
    ),
    ("docs/getting-started.md", "ha replay-tail --dry-run", {}, "no archived tail"),
    ("docs/getting-started.md", "ha diff", {}, "identical"),
    (
        "docs/store.md",
        "message query --topic Orders --tag paid --count 10",
        {"Orders": "NAME", "paid": "T"},
        "BODY",
    ),
)
#: The same after the cluster has stopped: a running broker has the newest index entries in memory.
_STORE_LINES: tuple[tuple[str, str, dict[str, str], str], ...] = (
    ("docs/store.md", "store ls DIR", {"DIR": "STORE"}, "commitlog"),
    ("docs/store.md", "store dump DIR -o jsonl", {"DIR": "STORE"}, '"topic": "orders"'),
    (
        "docs/store.md",
        "store dump DIR --what queues --topic Orders --queue 3 --from 1000 --to 1010",
        {"DIR": "STORE", "Orders --queue 3 --from 1000": "NAME --queue 0 --from 0"},
        "NAME",
    ),
    (
        "docs/store.md",
        "store query DIR --topic Orders --key order-17",
        {"DIR": "STORE", "Orders --key order-17": "NAME --key K"},
        "\n",  # the offset in the log
    ),
    ("docs/store.md", "store verify DIR -o json", {"DIR": "STORE"}, "problems"),
    ("docs/store.md", "store repair DIR --dry-run", {"DIR": "STORE"}, "Nothing to repair."),
    (
        "docs/store.md",
        "store diff /mnt/a/store /mnt/b/store",
        {"/mnt/a": "data/master", "/mnt/b": "data/slave"},
        "No difference.",
    ),
    (
        "docs/store.md",
        "store export DIR --topic Orders --out orders.jsonl",
        {"DIR": "STORE", "Orders": "NAME"},
        "Wrote 1 messages",
    ),
    (
        "docs/store.md",
        "store retention DIR -c broker.conf",
        {"DIR": "STORE", "broker.conf": "data/master/broker.conf"},
        "keep",
    ),
)


#: The programs of the README, with a part of what each prints.
_PROGRAMS = {"from rocketmq import": "01", "import cometmq": "b'hello'"}


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with temporary("--controller") as found:
        yield found.wait_in_sync()


@pytest.mark.timeout(1200)
@pytest.mark.real_start
def test_the_commands_of_the_guides_do_what_they_say(cluster: Cluster) -> None:
    places = {"ENDPOINT": cluster.address("master"), "STORE": "data/master/store"}
    for row in _LINES:
        run(cluster, row, places)
    for program in re.findall(r"^```python\n(.*?)^```$", README.read_text(), re.M | re.S):
        run_program(cluster, program)
    cluster.stop()
    for row in _STORE_LINES:
        run(cluster, row, places)


def run_program(cluster: Cluster, program: str) -> None:
    """Run a program of the README until it prints what it should, then press Ctrl-C."""
    (wanted,) = (told for start, told in _PROGRAMS.items() if program.startswith(start))
    addresses = "127.0.0.1:8081;127.0.0.1:8083", "127.0.0.1:8081"
    for address in addresses:
        program = program.replace(f'"{address}"', f'"{cluster.endpoints}"')
    with subprocess.Popen(
        [sys.executable, "-u", "-c", program],
        env={**os.environ, "HOME": str(cluster.data.parent)},
        stdout=subprocess.PIPE,
        text=True,
    ) as running:
        assert running.stdout is not None
        try:
            assert any(wanted in line for line in running.stdout)
            running.send_signal(signal.SIGINT)
            running.wait(60)
        finally:
            running.kill()


def run(
    cluster: Cluster, row: tuple[str, str, dict[str, str], str], places: dict[str, str]
) -> None:
    """Run a line of a page beside the cluster, and check what it prints."""
    page, line, instead, told = row
    printed = line.replace("DIR", "/var/lib/cometmq/store")
    assert f"cometmq {printed}" in (_ROOT / page).read_text(), (page, line)
    command = line
    for placeholder, value in (instead | places).items():
        command = command.replace(placeholder, value)
    environment = {name: value for name, value in os.environ.items() if "COMETMQ" not in name}
    environment["XDG_CONFIG_HOME"] = str(cluster.data.parent / "configuration")
    end = time.monotonic() + AGAIN_S
    while True:
        done = subprocess.run(
            [*cometmq_command(), *shlex.split(command, comments=True)],
            cwd=cluster.data.parent,
            env=environment,
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        # A leader that stalls on a busy machine is replaced: then a group is not healthy at once.
        if not (done.returncode and command.startswith("ha ") and time.monotonic() < end):
            break
        time.sleep(0.5)
    assert done.returncode == 0, (line, done.stdout, done.stderr)
    told_by = done.stdout + done.stderr
    assert told in told_by, (line, told_by)
