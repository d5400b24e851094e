"""The contract of every act over many objects: one that fails does not stop the others, each is
reported, the exit code is 1, and a repetition does what is left. One act is whole or nothing
instead: a restore.
"""

from __future__ import annotations

import asyncio
import json
import subprocess
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from cometmq.auth.model import Action, Policy, ResourcePattern, User
from cometmq.auth.quota import Quota
from cometmq.broker.metadata.log import MetaLog
from cometmq.broker.metadata.tables import PERM_READ, Group, Metadata, Topic
from cometmq.cli.root import cli
from cometmq.nameserver.config import NameserverConfig
from cometmq.nameserver.server import NameserverServer
from cometmq.operations.connection import Connection
from cometmq.operations.errors import CliError, Exit
from cometmq.proto import paths
from cometmq.store.format.properties import encode_properties
from cometmq.store.format.record import Message
from cometmq.tests.broker.live import Live, running, settings, until
from cometmq.tests.harness.cluster import cometmq_command
from cometmq.tests.mirror.test_mirror import side

REASON = "an injected fault"
GOOD, BAD = "good", "bad"
NAMES = ("broker-a", "broker-b")

#: Whether a call fails: its path and request.
Fault = Callable[[str, Any], bool]


@dataclass
class Two:
    """A cluster of two broker groups, in this process."""

    nodes: dict[str, Live]
    folder: Path
    nameserver: str
    #: Closes what an act has started.
    stack: AsyncExitStack
    #: Calls of the command line that fail.
    faults: list[Fault] = field(default_factory=list)

    async def run(self, *words: str) -> tuple[int, str]:
        """Run `cometmq WORDS`; return the exit code and what it prints."""
        if words[0] == "mirror":  # it handles signals: a process of its own
            command = [*cometmq_command(), *words]
            ended = await asyncio.to_thread(
                subprocess.run, command, capture_output=True, text=True, timeout=60, check=False
            )
            return ended.returncode, ended.stdout + ended.stderr
        done = await asyncio.to_thread(CliRunner().invoke, cli, words)
        if isinstance(done.exception, CliError):
            return done.exception.code, f"{done.output}\n{done.exception}"
        return done.exit_code, done.output

    async def at_first(self, *words: str) -> tuple[int, str]:
        """Run a command at the first group's node."""
        return await self.run(*words, "--endpoint", self.nodes[NAMES[0]].bound.client)

    def topics(self, *names: str, queues: int = 1) -> None:
        """Create topics in both groups."""
        for live in self.nodes.values():
            for name in names:
                live.node.meta_log.write_topic(Topic(name, queues, queues))

    def have(self, name: str) -> list[bool]:
        """Return which groups have a topic or consumer group of this name."""
        found = []
        for live in self.nodes.values():
            metadata = live.node.metadata
            found.append(name in metadata.topics or name in metadata.groups)
        return found


@asynccontextmanager
async def two(folder: Path, patch: pytest.MonkeyPatch) -> AsyncIterator[Two]:
    async with AsyncExitStack() as stack:
        config = NameserverConfig(bind_address="127.0.0.1", listen_port=0, remoting_listen_port=-1)
        server = NameserverServer(config)
        address = await server.start()
        stack.push_async_callback(server.stop, 0)
        nodes = {}
        for name in NAMES:
            chosen = settings(
                folder / name, namesrv_addr=address, broker_name=name, remoting_listen_port=-1
            )
            nodes[name] = await stack.enter_async_context(running(chosen))
        made = Two(nodes, folder, f"127.0.0.1:{server.remoting_port}", stack)
        await until(lambda: all(len(live.node.cluster.groups) == 2 for live in nodes.values()))
        for name in ("start", "stream"):
            patch.setattr(Connection, name, failing(getattr(Connection, name), made.faults))
        yield made


def failing(call: Any, faults: Sequence[Fault]) -> Any:
    """Return the method of `Connection` with the faults."""

    def tried(self: Connection, path: str, request: Any, *others: Any) -> Any:
        if not any(fault(path, request) for fault in faults):
            return call(self, path, request, *others)

        def fail() -> Any:
            raise CliError(REASON)

        def fail_later() -> Iterator[Any]:
            yield fail()

        return fail_later() if call.__name__ == "stream" else fail

    return tried


@dataclass
class Act:
    """One act over objects of which one fails until it is mended."""

    words: tuple[str, ...]
    #: Returns the objects that are done.
    done: Callable[[], set[str]]
    #: All objects, and what the output calls the one that fails.
    objects: set[str]
    bad: str
    fault: Fault | None = None
    mend: Callable[[], Any] = lambda: None
    #: The command names its cluster itself.
    own_endpoint: bool = False


#: What makes an act ready.
Ready = Callable[[Two], Awaitable[Act]]


def at(name: str, *of: str) -> Fault:
    """Return the fault of calls to a broker group."""
    return lambda path, request: path in of and request.broker == name


def named(path: str, name: str) -> Fault:
    """Return the fault of changes of an object."""
    return lambda called, request: called == path and request.name == name and not request.dry_run


async def created_topics(one: Two) -> Act:
    return Act(
        ("topic", "create", "t"),
        lambda: {name for name, has in zip(NAMES, one.have("t"), strict=True) if has},
        {*NAMES},
        NAMES[1],
        at(NAMES[1], paths.CREATE_TOPIC),
    )


async def deleted_topics(one: Two) -> Act:
    one.topics("t")
    return Act(
        ("topic", "delete", "t", "--yes"),
        lambda: {name for name, has in zip(NAMES, one.have("t"), strict=True) if not has},
        {*NAMES},
        NAMES[1],
        at(NAMES[1], paths.DELETE_TOPIC),
    )


async def created_groups(one: Two) -> Act:
    return Act(
        ("group", "create", "g"),
        lambda: {name for name, has in zip(NAMES, one.have("g"), strict=True) if has},
        {*NAMES},
        NAMES[1],
        at(NAMES[1], paths.CREATE_GROUP),
    )


async def deleted_groups(one: Two) -> Act:
    for live in one.nodes.values():
        live.node.meta_log.write_group(Group("g"))
    return Act(
        ("group", "delete", "g", "--yes"),
        lambda: {name for name, has in zip(NAMES, one.have("g"), strict=True) if not has},
        {*NAMES},
        NAMES[1],
        at(NAMES[1], paths.DELETE_GROUP),
    )


def consumed(one: Two) -> Callable[[], set[str]]:
    """Store four messages per queue, all consumed; return what names the queues that are reset."""
    one.topics("t", queues=3)
    for live in one.nodes.values():
        live.node.meta_log.write_group(Group("g"))
        for queue_id in range(3):
            for _ in range(4):
                live.node.sender.append(Message("t", queue_id, b"x"))
        live.node.pump.run()
        for queue_id in range(3):
            live.node.offsets.commit("t", "g", queue_id, 4)

    def reset() -> set[str]:
        return {
            f"{name} queue {queue_id}"
            for name, live in one.nodes.items()
            for queue_id in range(3)
            if live.node.offsets.get("t", "g", queue_id) != 4
        }

    return reset


async def offsets_like_others(one: Two) -> Act:
    reset = consumed(one)

    def fault(path: str, request: Any) -> bool:
        is_set = path == paths.RESET_OFFSETS and not request.dry_run
        return is_set and (request.broker, request.queue_id) == (NAMES[1], 1)

    for live in one.nodes.values():
        live.node.meta_log.write_group(Group("g2"))
        for queue_id in range(3):
            live.node.offsets.commit("t", "g2", queue_id, 2)
    return Act(
        ("offset", "reset", "g", "t", "--like", "g2", "--yes"),
        reset,
        {f"{name} queue {queue_id}" for name in NAMES for queue_id in range(3)},
        f"{NAMES[1]} queue 1",
        fault,
    )


async def offsets_to_a_place(one: Two) -> Act:
    reset = consumed(one)
    return Act(
        ("offset", "reset", "g", "t", "earliest", "--yes"),
        lambda: {name for name in NAMES if f"{name} queue 0" in reset()},
        {*NAMES},
        NAMES[1],
        at(NAMES[1], paths.RESET_OFFSETS),
    )


async def definitions(one: Two) -> Act:
    file = one.folder / "definitions.json"
    names = [BAD, GOOD, "last"]
    document = {
        "version": 1,
        "topics": [{"name": name} for name in names],
        "groups": [{"name": f"g-{name}"} for name in names],
    }
    file.write_text(json.dumps(document))
    every = {*names, *(f"g-{name}" for name in names)}
    return Act(
        ("cluster", "apply", str(file), "--yes"),
        lambda: {name for name in every if all(one.have(name))},
        every,
        BAD,
        named(paths.CREATE_TOPIC, BAD),
    )


async def reconciled(one: Two) -> Act:
    names = {BAD, GOOD, "last"}
    for name in sorted(names):
        one.nodes[NAMES[0]].node.meta_log.write_topic(Topic(name, 1, 1))
    return Act(
        ("cluster", "reconcile", "--yes"),
        lambda: {name for name in names if all(one.have(name))},
        names,
        BAD,
        named(paths.CREATE_TOPIC, BAD),
    )


async def drained(one: Two) -> Act:
    names = {BAD, GOOD, "last"}
    one.topics(*sorted(names))
    topics = one.nodes[NAMES[1]].node.metadata.topics
    return Act(
        ("cluster", "drain", NAMES[1], "--yes"),
        lambda: {name for name in names if not topics[name].writable},
        names,
        BAD,
        named(paths.CREATE_TOPIC, BAD),
    )


async def saved(one: Two) -> Act:
    folder = one.folder / "backup"
    one.topics("t")

    def done() -> set[str]:
        manifest = json.loads((folder / "manifest.json").read_text())
        return {group["broker"] for group in manifest["groups"]}

    return Act(
        ("backup", "create", str(folder)),
        done,
        {*NAMES},
        NAMES[1],
        at(NAMES[1], paths.LOCATE_LOG),
    )


async def verified(one: Two) -> Act:
    """The objects are the files; done are those that no report names."""
    folder = one.folder / "backup"
    one.topics("t")
    made = await one.at_first("backup", "create", str(folder))
    assert made[0] == Exit.DONE, made
    files = {name: folder / name / "offsets.json" for name in NAMES}
    kept = files[NAMES[1]].read_bytes()
    files[NAMES[1]].write_bytes(b"[]" + kept)
    return Act(
        ("backup", "verify", str(folder)),
        lambda: {name for name, file in files.items() if file.read_bytes()[:3] != b"[]["},
        {*NAMES},
        str(files[NAMES[1]]),
        mend=lambda: files[NAMES[1]].write_bytes(kept),
        own_endpoint=True,
    )


async def redriven(one: Two) -> Act:
    node = one.nodes[NAMES[0]].node
    node.meta_log.write_group(Group("g"))
    node.meta_log.write_topic(Topic("%DLQ%g", 1, 1))
    one.topics(GOOD, "last")
    for name in (BAD, GOOD, "last"):
        properties = encode_properties({"UNIQ_KEY": f"id-{name}", "DLQ_ORIGIN_TOPIC": name})
        node.sender.append(Message("%DLQ%g", 0, name.encode(), properties))
    node.pump.run()

    def done() -> set[str]:
        for live in one.nodes.values():
            live.node.pump.run()
        return {
            name
            for name in (BAD, GOOD, "last")
            if sum(live.node.store.max_offset(name, 0) for live in one.nodes.values()) == 1
        }

    return Act(
        ("dlq", "redrive", "g", "--yes"),
        done,
        {BAD, GOOD, "last"},
        f"id-{BAD}",
        mend=lambda: one.topics(BAD),
    )


async def mirrored(one: Two) -> Act:
    source = one.nodes[NAMES[0]].node
    target = await one.stack.enter_async_context(side(one.folder / "target", "new"))
    tables = target.live.node.metadata
    for name in (BAD, GOOD, "last"):
        source.meta_log.write_topic(Topic(name, 1, 1))
        source.sender.append(Message(name, 0, b"x"))
    source.pump.run()
    target.live.node.meta_log.write_topic(Topic(BAD, 1, 1, perm=PERM_READ))
    ends = ("--source", one.nameserver, "--target", f"127.0.0.1:{target.nameserver}")
    return Act(
        ("mirror", "run", *ends, "--state", str(one.folder / "state"), "--until-caught-up"),
        lambda: {name for name in tables.topics if target.records(name, 0)},
        {BAD, GOOD, "last"},
        f"Topic {BAD}",
        mend=lambda: target.live.node.meta_log.write_topic(Topic(BAD, 1, 1)),
        own_endpoint=True,
    )


def in_each_group(
    words: str, path: str, begin: Callable[[MetaLog], object], is_done: Callable[[Metadata], bool]
) -> Ready:
    """Return an act that is one change in each broker group, after `begin`."""

    async def ready(one: Two) -> Act:
        for live in one.nodes.values():
            begin(live.node.meta_log)
        tables = {name: live.node.metadata for name, live in one.nodes.items()}
        return Act(
            tuple(words.split()),
            lambda: {name for name, metadata in tables.items() if is_done(metadata)},
            {*NAMES},
            NAMES[1],
            at(NAMES[1], path),
        )

    return ready


TO_READ = Policy(ResourcePattern.parse("Topic:t"), Action.SUB, allow=True)
USER = User("u", b"secret-secret-12", policies=(TO_READ,))
#: Changes of one object in every broker group.
CHANGES: dict[str, Ready] = {
    "topics are altered": in_each_group(
        "topic alter t --queues 4",
        paths.CREATE_TOPIC,
        lambda log: log.write_topic(Topic("t", 1, 1)),
        lambda tables: tables.topics["t"].read_queues == 4,
    ),
    "groups are altered": in_each_group(
        "group alter g --max-attempts 3",
        paths.CREATE_GROUP,
        lambda log: log.write_group(Group("g")),
        lambda tables: tables.groups["g"].max_attempts == 3,
    ),
    "users are created": in_each_group(
        "user create u --secret secret-secret-12",
        paths.PUT_USER,
        lambda log: None,
        lambda tables: "u" in tables.users,
    ),
    "users are disabled": in_each_group(
        "user disable u",
        paths.PUT_USER,
        lambda log: log.write_user(USER),
        lambda tables: not tables.users["u"].enabled,
    ),
    "users are deleted": in_each_group(
        "user delete u",
        paths.DELETE_USER,
        lambda log: log.write_user(USER),
        lambda tables: "u" not in tables.users,
    ),
    "policies are created": in_each_group(
        "acl create --user u --resource Topic:other --actions Sub",
        paths.PUT_POLICY,
        lambda log: log.write_user(USER),
        lambda tables: len(tables.users["u"].policies) == 2,
    ),
    "policies are deleted": in_each_group(
        "acl delete --user u --resource Topic:t",
        paths.DELETE_POLICY,
        lambda log: log.write_user(USER),
        lambda tables: not tables.users["u"].policies,
    ),
    "quotas are set": in_each_group(
        "quota set Topic:t --messages 5",
        paths.PUT_QUOTA,
        lambda log: None,
        lambda tables: "Topic:t" in tables.quotas,
    ),
    "quotas are deleted": in_each_group(
        "quota delete Topic:t",
        paths.DELETE_QUOTA,
        lambda log: log.write_quota(Quota("Topic:t", messages=5)),
        lambda tables: "Topic:t" not in tables.quotas,
    ),
}

ACTS: dict[str, Ready] = {
    **CHANGES,
    "topics are created": created_topics,
    "topics are deleted": deleted_topics,
    "groups are created": created_groups,
    "groups are deleted": deleted_groups,
    "queues get the offsets of another group": offsets_like_others,
    "offsets are reset": offsets_to_a_place,
    "definitions are applied": definitions,
    "groups are reconciled": reconciled,
    "a group is drained": drained,
    "groups are saved": saved,
    "a backup is verified": verified,
    "dead letters are sent again": redriven,
    "topics are mirrored": mirrored,
}


async def test_a_restore_is_whole_or_nothing_names_each_damaged_group_and_can_be_repeated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A cluster without one of its groups would answer that their topics do not exist."""
    backup, restored = tmp_path / "backup", tmp_path / "restored"
    async with two(tmp_path, monkeypatch) as one:
        one.topics("t")
        code, said = await one.at_first("backup", "create", str(backup))
        assert code == Exit.DONE, said
        files = [next((backup / name / "log").iterdir()) for name in NAMES]
        kept = [file.read_bytes() for file in files]
        for file in files:
            file.write_bytes(b"damaged")
        words = ("backup", "restore", str(backup), "--data", str(restored), "--replicas", "1")
        code, said = await one.run(*words)
        assert code == Exit.FAILED, said
        assert all(f"{name}: " in said for name in NAMES), said
        assert not restored.exists()
        for file, data in zip(files, kept, strict=True):
            file.write_bytes(data)
        code, said = await one.run(*words)
        assert code == Exit.DONE, said
        logs = [*restored.glob("*/store/commitlog/*")]
        assert len(logs) == len(files), logs


@pytest.mark.parametrize("ready", ACTS.values(), ids=ACTS)
async def test_one_object_that_fails_does_not_stop_the_others(
    ready: Ready, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with two(tmp_path, monkeypatch) as one:
        act = await ready(one)
        if act.fault is not None:
            one.faults.append(act.fault)
        run = one.run if act.own_endpoint else one.at_first
        code, said = await run(*act.words)
        assert code == Exit.FAILED, said
        reason = REASON if act.fault is not None else ""
        assert any(act.bad in line and reason in line for line in said.splitlines()), said
        left = act.objects - act.done()
        assert len(left) == 1, (left, said)
        one.faults.clear()
        act.mend()
        code, said = await run(*act.words)
        assert code in (Exit.DONE, Exit.UNHEALTHY), said
        assert act.done() == act.objects
