"""The commands of the first hour, run in the order of the guides beside a cluster."""

from __future__ import annotations

import os
import shlex
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from cometmq.tests.harness.cluster import Cluster, cometmq_command, temporary

_ROOT = Path(__file__).resolve().parents[2]
#: (page, line of the page, what the line says instead of its placeholders, part of the output).
_LINES: tuple[tuple[str, str, dict[str, str], str], ...] = (
    ("README.md", "topic create orders --queues 8", {}, "Created topic orders"),
    ("README.md", "group create billing", {}, "Created group billing"),
    ("README.md", 'message send orders "hello" --tag new', {}, "message id"),
    ("README.md", "ha status        # leader", {}, "healthy"),
    ("docs/sdk.md", "topic create steps --type fifo", {}, "Created topic steps"),
    ("docs/sdk.md", "topic create payments --type transaction", {}, "Created topic payments"),
    (
        "docs/getting-started.md",
        "topic create NAME --type normal|fifo|delay|transaction|mixed|priority|lite --queues 8",
        {"|fifo|delay|transaction|mixed|priority|lite": ""},
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
    ("docs/getting-started.md", "healthcheck", {}, "is serving"),
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
    ("docs/getting-started.md", "ha replay-tail --dry-run", {}, "no archived tail"),
    ("docs/getting-started.md", "ha diff", {}, "identical"),
)


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with temporary("--controller") as found:
        yield found.wait_in_sync()


def test_the_commands_of_the_guides_do_what_they_say(cluster: Cluster) -> None:
    place = cluster.data.parent
    environment = {name: value for name, value in os.environ.items() if "COMETMQ" not in name}
    environment["XDG_CONFIG_HOME"] = str(place / "configuration")
    for page, line, instead, told in _LINES:
        assert f"cometmq {line}" in (_ROOT / page).read_text(), (page, line)
        command = line
        for placeholder, value in instead.items():
            command = command.replace(placeholder, value)
        done = subprocess.run(
            [*cometmq_command(), *shlex.split(command, comments=True)],
            cwd=place,
            env=environment,
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        assert done.returncode == 0, (line, done.stdout, done.stderr)
        assert told in done.stdout, (line, done.stdout)
