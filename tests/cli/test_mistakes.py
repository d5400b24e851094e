"""Mistakes at the command line: each answer names the command, or the option, that helps."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from cometmq.tests.harness.cluster import Cluster, temporary

#: A command line with a mistake, the exit code, and a part of the answer. `{data}` is the directory
#: of the cluster; `{ns}`, `{ha}` and `{metrics}` are its other ports.
MISTAKES: dict[str, tuple[int, str]] = {
    "topics": (2, "No such command 'topics'. (Did you mean one of: 'topic'"),
    "topic creat orders": (2, "Did you mean 'create'?"),
    "send orders hello": (2, "Did you mean `cometmq message send`?"),
    "topic create t2 --queues": (2, "requires an argument. See `cometmq topic create --help`"),
    "topic list extra": (2, "Try 'cometmq topic list --help'"),
    "topic create": (2, "Missing argument 'NAME'"),
    "topic create orders --type fifo": (1, "`cometmq topic alter orders --type fifo`"),
    "topic create bad/name": (1, "(ILLEGAL_TOPIC). See `cometmq topic create --help`"),
    "topic create orders --queues 0": (2, "not in the range 1<=x<=1024"),
    "topic create t2 --type quick": (2, "'quick' is not one of 'normal', 'fifo'"),
    "topic list -o xml": (2, "is not one of 'table', 'wide', 'json', 'yaml'"),
    "topic describe ordrs": (4, "Did you mean orders?"),
    "topic delete orders": (1, "Use --accept-loss"),
    "topic alter nowhere --queues 9": (4, "`cometmq topic list` shows those that exist"),
    "topic alter orders --queues 2": (1, "Lower its write queues first"),
    "message send ordrs hello": (4, "Did you mean orders?"),
    "message send remind hello": (2, "Topic remind requires --delay. See"),
    "message send steps hello": (2, "Topic steps requires --group. See"),
    "message send orders hello --group g": (2, "does not accept --group"),
    "message send orders hello --property x": (2, "--property must be NAME=VALUE"),
    "message send orders hello --lines": (2, "omit BODY and --count"),
    "message send orders --lines": (2, "stdin is empty"),
    "message send orders": (2, "There is no body: give BODY, or pipe it"),
    "message send orders --delay soon hello": (2, "'soon' is not a duration such as"),
    "message get orders 0 999": (4, "`cometmq topic describe orders`"),
    "message get orders 99 0": (4, "`cometmq topic describe orders`"),
    "message query --topic orders": (2, "exactly one of --key"),
    "message query --key o-1": (2, "Give --topic. See `cometmq message query --help`"),
    "message query --topic orders --key none": (4, "cometmq message tail TOPIC"),
    "message query --topic nowhere --key none": (4, "`cometmq topic list`"),
    "message story 0000 --topic orders": (4, "its topic is another one (--topic)"),
    "message tail nowhere": (4, "`cometmq topic list` shows those that exist"),
    "group describe biling": (4, "Did you mean billing?"),
    "group delete missing": (4, "`cometmq group list` shows those that exist"),
    "group create g2 --retry-delays 1s": (2, "needs --retry-policy customized"),
    "offset reset billing orders": (2, "--offset N, --shift N or --like GROUP"),
    "offset reset billing orders yesterday": (2, "not a time such as 2026-11-22T10:00, -1h"),
    "offset reset missing orders earliest": (4, "`cometmq group list`"),
    "offset show billing nowhere": (4, "`cometmq topic list`"),
    "dlq ls missing": (4, "`cometmq group list`"),
    "timer ls nowhere": (4, "`cometmq topic list`"),
    "timer recall remind nonsense": (1, "See `cometmq timer recall --help`"),
    "consume": (2, "Missing argument 'GROUP'"),
    "consume billing": (2, "cometmq consume billing TOPIC"),
    "config show flushDiskTyp": (4, "Did you mean flushDiskType?"),
    "config show nothing flushDiskTyp": (4, "Unknown setting 'nothing'.\nUnknown setting 'flush"),
    "config set flushDiskType=SYNC_FLUSH": (1, "change broker.conf and restart"),
    "config set fileReservedTim=5": (4, "Did you mean fileReservedTime?"),
    "config list --search zzz": (4, "`cometmq config list` shows all of them"),
    "config set nonsense": (2, "is not KEY=VALUE"),
    "config set maxTopics=80000 maxTopics=90000": (2, "maxTopics is given twice"),
    "acl create --user a --resource Topic:t --resource Topic:u --actions Pub": (
        *(2, "--resource is given twice"),
    ),
    "message send orders hello --tag a --tag=b": (2, "--tag is given twice"),
    "auth dev-ca a=10.0.0.1 a=10.0.0.2": (2, "A NODE is named twice"),
    "context use prod": (4, "cometmq context add"),
    "acl create --user app --resource orders --actions Pub": (2, "use Topic:NAME, Group:NAME"),
    "acl list --user missing": (4, "`cometmq user list` shows the users"),
    "quota delete Topic:orders": (4, "`cometmq quota list` shows the quotas"),
    "quota set missing --messages 5": (1, "See `cometmq quota set --help`"),
    "up restart mater --data {data}": (4, "`cometmq up status`"),
    "up status --data {data}/none": (1, "Name its data directory with --data"),
    "up {data}": (2, "The directory is an option: cometmq up --data {data}"),
    "up statu": (2, "Did you mean one of: 'restart', 'status'"),
    "ha status --endpoint {ns}": (2, "Did you mean '--namesrv'?"),
    "ha status --data {data} --group missing": (4, "`cometmq ha status` lists the groups"),
    "ha status --namesrv {client}": (1, "is the client port of a broker. Name a nameserver with"),
    "ha status --namesrv 127.0.0.1:1": (1, "or name a running nameserver with --namesrv."),
    "up --data {data}": (1, "or name another directory with --data"),
    "store ls {data}": (4, "DATA/NAME/store"),
    "backup verify {data}": (2, "See `cometmq backup verify --help`"),
    "cluster drain missing": (2, "`cometmq cluster add-group`"),
    "healthcheck --endpoint 127.0.0.1:1": (3, "`cometmq doctor connect 127.0.0.1:1`"),
    "topic list --endpoint localhost": (2, "--endpoint must be HOST:PORT"),
    "topic list --endpoint {ns}": (1, "is the port of a nameserver. Name the client port"),
    "topic list --endpoint {ha}": (1, "is a replication port. Name the client port"),
    "topic list --endpoint {metrics}": (1, "is an HTTP port"),
    "topic list --endpoint 127.0.0.1:1": (1, "Start a cluster with `cometmq up`"),
    "topicList -n 127.0.0.1:1": (1, "or name a broker with --endpoint HOST:PORT"),
    "doctor connect": (2, "Missing argument 'HOST:PORT'"),
    "mirror status": (2, "Missing option '--state'"),
}
#: What looks like one: a value, or an argument behind `--`, that begins as an option does.
ACCEPTED = (
    "message send orders --key --tag --tag x hello",
    "message send orders --tag x -- --tag",
    "message send orders --tag x --tag x hello",
)
#: The next command: one of ours, an option of it, or a name to use instead.
_NEXT = re.compile(r"cometmq |--[a-z]|Did you mean|change broker\.conf")


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with temporary("--single") as cluster:
        for words in (
            "topic create orders",
            "topic create remind --type delay",
            "topic create steps --type fifo",
            "group create billing",
            "message send orders hello",
        ):
            cluster.run(*words.split(), *_at(cluster))
        yield cluster


def _at(cluster: Cluster) -> tuple[str, str]:
    return "--endpoint", f"127.0.0.1:{cluster.node('single').ports['client']}"


@pytest.mark.parametrize("typed", MISTAKES)
def test_the_answer_to_a_mistake_names_what_helps(
    cluster: Cluster, typed: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    ports = cluster.node("single").ports
    places = {
        "data": str(cluster.data),
        "client": f"127.0.0.1:{ports['client']}",
        "ns": f"127.0.0.1:{ports['namesrv']}",
        "ha": f"127.0.0.1:{ports['ha']}",
        "metrics": f"127.0.0.1:{ports['metrics']}",
    }
    monkeypatch.setenv("COMETMQ_ENDPOINT", _at(cluster)[1])
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    code, sentence = MISTAKES[typed]
    done = cluster.run(*typed.format(**places).split(), check=False)
    assert (done.returncode, done.stdout) == (code, ""), done.stderr
    assert sentence.format(**places) in done.stderr
    assert _NEXT.search(done.stderr), done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("typed", ACCEPTED)
def test_values_that_look_like_options_are_accepted(
    cluster: Cluster, typed: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COMETMQ_ENDPOINT", _at(cluster)[1])
    assert "message id" in cluster.run(*typed.split()).stdout
