"""Every command that prints tables: no line wider than a terminal of 80 columns, closed pipes."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from cometmq.cli.root import cli
from cometmq.cli.table import cells, field_lines, table_lines
from cometmq.tests.harness.cluster import Cluster, cometmq_command, temporary

COLUMNS = 80
TOPIC = "orders-of-the-european-shops-in-every-country"
GROUP = "billing-of-the-european-shops-in-every-country"

#: What is typed, by command. Places: {data} of the cluster, {ns} its nameserver, {id} of a message.
WALK = {
    "topic list": "",
    "topic describe": TOPIC,
    "group list": "",
    "group describe": GROUP,
    "client list": "",
    "offset show": GROUP,
    "offset reset": f"{GROUP} {TOPIC} earliest --dry-run",
    "message get": f"{TOPIC} 0 0",
    "message query": f"--topic {TOPIC} --key o-1",
    "message story": "{id} " + f"--topic {TOPIC}",
    "message send": f"{TOPIC} hello --key o-2",
    "top": "--once",
    "dlq ls": "",
    "dlq redrive": f"{GROUP} --dry-run",
    "timer ls": "",
    "topic delete": f"{TOPIC} --dry-run",
    "group delete": f"{GROUP} --dry-run",
    "cluster describe": "",
    "cluster reconcile": "--dry-run",
    "context list": "",
    "user list": "",
    "acl list": "--user app",
    "quota list": "",
    "ha status": "--namesrv {ns} --data {data}",
    "doctor": "",
    "doctor connect": "{endpoint}",
    "doctor security": "--data {data}",
    "store ls": "{data}/single/store --all",
    "store verify": "{data}/single/store",
    "store retention": "{data}/single/store",
    "store repair": "{data}/single/store --dry-run",
    "config show": "--origin",
    "config list": "",
    "config set": "fileReservedTime=48 --dry-run",
    "up status": "--data {data}",
    "version": "",
}
#: Further tables of some of them.
MORE = (("topic describe", "chats --lite-topics *"),)
#: Commands whose output is no table, or needs Spark, a second cluster or an hour: they print with
#: `show_fields`, `print_table` or `show_rows` as those above do.
NOT_HERE = {
    *("consume", "message tail", "store dump", "store query", "store export", "store diff"),
    *("bench", "drill", "mirror status", "ha diff", "ha exited", "ha failover", "ha force-elect"),
    *("ha policy", "ha replay-tail", "ha reseed", "ha switchover", "healthcheck"),
    *("pipeline archive", "pipeline check", "pipeline compact", "pipeline replay"),
    *("pipeline lake", "cluster forget"),
    *("pipeline dlq", "pipeline verify", "pipeline rebuild", "pipeline reconcile"),
    *("pipeline insights", "cluster apply", "cluster drain", "timer recall", "auth check"),
    *("auth init", "acl create", "acl delete", "quota set", "quota delete", "topic create"),
    *("topic alter", "group create", "group alter", "user create", "user delete", "user disable"),
    *("user enable", "user rotate"),
}


def _commands(command: click.Command, words: tuple[str, ...] = ()) -> Iterator[str]:
    """Yield the commands that have `-o`."""
    if any("-o" in option.opts for option in command.params):
        yield " ".join(words)
    if isinstance(command, click.Group):
        ctx = click.Context(command)
        for name in command.list_commands(ctx):
            found = command.get_command(ctx, name)
            assert found is not None
            yield from _commands(found, (*words, name))


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with temporary("--single") as cluster:
        at = ("--endpoint", _endpoint(cluster))
        body = "a body of many words " * 20
        for words in (
            ("topic", "create", TOPIC),
            ("topic", "create", "reminders", "--type", "delay"),
            ("topic", "create", "chats", "--type", "lite"),
            ("message", "send", "chats", body, "--lite-topic", "session-of-a-customer-" * 2),
            ("group", "create", GROUP),
            ("message", "send", TOPIC, body, "--key", "o-1", "--tag", "new", "--count", "40"),
            ("message", "send", "reminders", body, "--delay", "1h", "--key", "r-1"),
            ("consume", GROUP, TOPIC, "--count", "3", "--timeout", "20"),
            ("user", "create", "app"),
            ("acl", "create", "--user", "app", "--resource", f"Topic:{TOPIC}", "--actions", "Pub"),
            ("quota", "set", f"Topic:{TOPIC}", "--messages", "500"),
        ):
            cluster.run(*words, *at)
        yield cluster


def _endpoint(cluster: Cluster) -> str:
    return f"127.0.0.1:{cluster.node('single').ports['client']}"


def test_every_command_with_tables_is_walked() -> None:
    assert sorted(_commands(cli)) == sorted([*WALK, *NOT_HERE & set(_commands(cli))])


def test_no_line_is_wider_than_the_terminal(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("COMETMQ_ENDPOINT", _endpoint(cluster))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    monkeypatch.setenv("COLUMNS", str(COLUMNS))
    stored = cluster.run("message", "send", TOPIC, "x", "-o", "json").stdout
    places = {
        "data": str(cluster.data),
        "endpoint": _endpoint(cluster),
        "ns": f"127.0.0.1:{cluster.node('single').ports['namesrv']}",
        "id": stored.split('"message_id": "')[1].split('"')[0],
    }
    for command, rest in (*WALK.items(), *MORE):
        done = cluster.run(*command.split(), *rest.format(**places).split(), check=False)
        assert done.stdout, (command, done.stderr)
        wide = [
            line
            for line in done.stdout.splitlines()
            # A sentence has no gaps; a word longer than the place of its value is not broken.
            if cells(line) > COLUMNS and "  " in line and len(line.split()) > 2
        ]
        assert not wide, (command, wide)


def _time(ms: int) -> str:
    return "2026-11-18 11:06:40.000+00:00" if ms else "-"


ROWS = [
    {"message_id": "0" * 34, "origin": "orders", "stored_ms": 1, "keys": ["a"], "body": "x " * 99}
]


def test_a_narrow_table_omits_details_and_names_them() -> None:
    lines, omitted = table_lines(ROWS, 80, _time)
    assert max(map(cells, lines)) <= 80
    assert omitted == ["stored"]
    assert lines[0].split() == ["message", "id", "origin", "keys", "body"]
    assert lines[2].endswith("...")


def test_without_room_for_a_table_rows_are_records() -> None:
    lines, omitted = table_lines(ROWS, 50, _time)
    assert (max(map(cells, lines)) <= 50, omitted) == (True, [])
    assert lines[0] == f"message id  {'0' * 34}"
    assert "x ..." not in "".join(lines)  # a record has the whole body


def test_without_a_limit_nothing_is_omitted() -> None:
    lines, omitted = table_lines(ROWS, 0, _time)
    assert omitted == []
    assert "2026-11-18 11:06:40.000+00:00" in lines[2]


def test_lines_break_between_words_only() -> None:
    rows = [{"key": "k", "help": "a sentence of words that is long enough to need more lines"}]
    lines, _ = table_lines(rows, 30, _time)
    assert max(map(cells, lines)) <= 30
    words = " ".join(line[5:].strip() for line in lines[2:])
    assert " ".join(words.split()) == rows[0]["help"]


def test_names_of_columns_give_their_units() -> None:
    fields = {
        "behind_bytes": 3 << 20,
        "heartbeat_age_ms": 90_000,
        "seen_ms_ago": 1_500,
        "p99_ms": 0.5,
    }
    assert field_lines(fields, 0, _time) == [
        "behind         3.0 MiB",
        "heartbeat age  2 min",
        "seen           1.5 s ago",
        "p99            0.5 ms",
    ]


def test_values_cannot_move_the_cursor() -> None:
    lines, _ = table_lines([{"tag": "a\x1b[2Jb\rc"}], 0, _time)
    assert lines[2] == r"a\x1b[2Jb\rc"


def test_wide_characters_take_two_cells() -> None:
    lines, _ = table_lines([{"body": "订单" * 40, "queue": 1}], 40, _time)
    assert max(map(cells, lines)) <= 40


def test_every_command_ends_quietly_at_a_closed_pipe(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("COMETMQ_ENDPOINT", _endpoint(cluster))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    places = {
        "data": str(cluster.data),
        "endpoint": _endpoint(cluster),
        "ns": f"127.0.0.1:{cluster.node('single').ports['namesrv']}",
        "id": "0" * 34,
    }
    more = {"message tail": f"{TOPIC} --from beginning --count 40", "cheat": "", "help": ""}
    for command, rest in {**WALK, **more}.items():
        reader, writer = os.pipe()
        os.close(reader)
        try:
            words = [*cometmq_command(), *command.split(), *rest.format(**places).split()]
            done = subprocess.run(
                words,
                stdin=subprocess.DEVNULL,
                stdout=writer,
                stderr=subprocess.PIPE,
                text=True,
                timeout=60,
                check=False,
            )
        finally:
            os.close(writer)
        for told in ("Traceback", "BrokenPipe", "Broken pipe", "Exception ignored"):
            assert told not in done.stderr, (command, done.stderr)
