"""`cometmq cluster export` and `apply` with real processes, and the document's rules."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from cometmq.cli.cluster.definitions import SECTIONS, definitions_of, document_of
from cometmq.cli.yaml import yaml_lines
from cometmq.operations.errors import Exit
from cometmq.proto import v1
from cometmq.tests.cli.two_groups import NAMES, TwoGroups, two_groups
from cometmq.tests.harness.cluster import START_S, cometmq_command, wait_until

DOCUMENT: dict[str, Any] = {
    "version": 1,
    "topics": [
        {"name": "orders", "type": "fifo", "read_queues": 3, "write_queues": 3},
        {"name": "chats", "type": "lite", "attributes": {"lite.topic.expiration": "60"}},
    ],
    "groups": [
        {"name": "billing", "order": True, "max_attempts": 5, "retry": {"delays": ["1s", "5s"]}},
        {"name": "slow", "retry": {"initial": "5s", "max": "1h", "multiplier": 2.0}},
    ],
    "users": [
        {
            "name": "worker",
            "secret": "worker-secret",
            "policies": [
                {"resource": "Topic:orders", "actions": ["Pub"], "from": ["10.0.0.0/8"]},
                {"resource": "Group:*", "decision": "deny", "actions": ["Sub"]},
            ],
        }
    ],
    "quotas": [{"subject": "User:worker", "messages": 9}],
}


@pytest.fixture(scope="module")
def groups(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TwoGroups]:
    with two_groups(tmp_path_factory.mktemp("definitions"), proxy=False) as found:
        yield found


def written(path: Path, document: object) -> str:
    path.write_text(json.dumps(document))
    return str(path)


def names(document: dict[str, Any]) -> dict[str, list[str]]:
    return {s.title: [each[s.key] for each in document[s.title]] for s in SECTIONS}


def rows(found: list[dict[str, str]]) -> list[tuple[str, ...]]:
    return [(row["broker"], row["kind"], row["name"], row["action"]) for row in found]


def test_an_applied_file_is_exported_again_and_a_repetition_changes_nothing(
    groups: TwoGroups, tmp_path: Path
) -> None:
    file = written(tmp_path / "wanted.json", DOCUMENT)
    plan = groups.json("cluster", "apply", file, "--dry-run")
    objects = [
        *(("topic", "orders"), ("topic", "chats"), ("group", "billing"), ("group", "slow")),
        *(("user", "worker"), ("quota", "User:worker")),
    ]
    assert sorted(rows(plan["changes"])) == sorted(
        (broker, kind, name, "create") for broker in NAMES for kind, name in objects
    )
    assert names(yaml.safe_load(groups.out("cluster", "export", "-")))["topics"] == []
    applied = groups.out("cluster", "apply", file)
    assert "broker-b  Created topic orders.\n" in applied
    assert groups.out("cluster", "apply", file) == "The cluster has all definitions.\n"

    exported = tmp_path / "exported.yaml"
    told = groups.out("cluster", "export", str(exported))
    assert told == f"Wrote {exported}. Topics: 2, groups: 2, users: 1, quotas: 1.\n"
    assert exported.stat().st_mode & 0o777 == 0o600
    document = yaml.safe_load(exported.read_text())
    orders = next(each for each in document["topics"] if each["name"] == "orders")
    assert (orders["type"], orders["write_queues"], orders["permission"]) == ("fifo", 3, "rw")
    assert document["groups"][0]["retry"] == {"delays": ["1s", "5s"]}
    assert document["groups"][1]["retry"] == DOCUMENT["groups"][1]["retry"]
    (worker,) = document["users"]
    assert "secret" not in worker and "worker-secret" not in exported.read_text()
    assert [policy["resource"] for policy in worker["policies"]] == ["Group:*", "Topic:orders"]
    assert groups.out("cluster", "apply", str(exported)) == "The cluster has all definitions.\n"

    orders["write_queues"] = 2
    worker["policies"].pop()
    document["topics"] = [orders]
    changed = tmp_path / "changed.yaml"
    changed.write_text("\n".join(yaml_lines(document)))
    plan = groups.json("cluster", "apply", str(changed), "--dry-run", "--prune")["changes"]
    kinds = [
        *(("topic", "orders", "change"), ("topic", "chats", "delete")),
        ("user", "worker", "change"),
    ]
    assert sorted(rows(plan)) == sorted((name, *each) for name in NAMES for each in kinds)
    assert "write_queues 3 -> 2" in plan[0]["settings"]
    groups.run("cluster", "apply", str(changed))
    assert "chats" in groups.out("topic", "list"), "nothing is deleted without --prune"
    groups.run("cluster", "apply", str(changed), "--prune")
    assert "chats" not in groups.out("topic", "list")
    (policy,) = groups.json("acl", "list")
    assert (policy["resource"], policy["brokers"]) == ("Group:*", NAMES)


def test_the_printed_command_completes_what_a_group_that_was_down_missed(
    groups: TwoGroups, tmp_path: Path
) -> None:
    file = written(tmp_path / "late.json", {"version": 1, "topics": [{"name": "late"}]})
    groups.second.stop()
    try:
        partial = groups.run("cluster", "apply", file, code=Exit.FAILED)
        assert "broker-a  Created topic late.\n" in partial.stdout
        assert "cometmq: broker-b: " in partial.stderr
        printed = partial.stderr.split("To finish, run: ")[1].splitlines()[0]
    finally:
        groups.second.start()
        wait_until("both groups are known again", groups.both_are_known)
    program, *words = shlex.split(printed)
    assert (program, words[-2:]) == ("cometmq", ["--broker", "broker-b"])
    done = subprocess.run(
        [*cometmq_command(), *words], capture_output=True, text=True, check=False, timeout=START_S
    )
    assert done.returncode == 0 and "Created topic late." in done.stdout, done
    row = next(row for row in groups.json("topic", "list") if row["topic"] == "late")
    assert row["brokers"] == NAMES


def test_a_new_user_without_a_secret_key_is_reported(groups: TwoGroups, tmp_path: Path) -> None:
    file = written(tmp_path / "user.json", {"version": 1, "users": [{"name": "bare"}]})
    failed = groups.run("cluster", "apply", file, code=Exit.FAILED)
    assert "cometmq user create bare --secret SECRET_KEY --broker broker-a" in failed.stdout
    assert groups.run("cluster", "apply", file, "--accept-loss", code=Exit.USAGE)


def test_a_dry_run_refuses_what_the_change_refuses(groups: TwoGroups, tmp_path: Path) -> None:
    groups.run("topic", "create", "held", "--queues", "2")
    groups.run("message", "send", "held", "kept", "--count", "8")
    held = {"name": "held", "read_queues": 2, "write_queues": 2}
    boss = {"name": "boss", "secret": "secret-of-boss", "type": "super"}
    file = written(tmp_path / "boss.json", {"version": 1, "users": [boss]})
    groups.run("cluster", "apply", file)
    for change, words in (
        ({"topics": [{**held, "read_queues": 1, "write_queues": 1}]}, ()),
        ({"users": [{"name": "boss", "type": "normal"}]}, ()),
        ({"users": [{"name": "boss", "enabled": False}]}, ()),
        ({"topics": [held, {"name": "rmq_sys_mine"}]}, ()),
        ({"topics": [held, {"name": "wrong name"}]}, ()),
        ({"groups": [{"name": "wrong name"}]}, ()),
        ({"users": [{"name": "bare"}]}, ()),
        ({"quotas": [{"subject": "User:someone", "messages": 0}]}, ()),
        ({"topics": []}, ("--prune",)),
    ):
        file = written(tmp_path / "refused.json", {"version": 1, **change})
        seen = groups.run("cluster", "apply", file, *words, "--dry-run", code=Exit.FAILED)
        assert "Would fail: " in seen.stderr, change
        assert "changes would be refused." in seen.stderr
        groups.run("cluster", "apply", file, *words, code=Exit.FAILED)
    assert groups.json("topic", "describe", "held")["read_queues"] == 2


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"topics": [{"name": 7}]}, "topics, object 1: a mapping with a text 'name' is needed"),
        ({"topics": [{"name": "a"}, {"name": "a"}]}, "the name 'a' is twice"),
        ({"topics": [{"name": "a", "queues": 1}]}, "did you mean 'read_queues'?"),
        ({"topics": [{"name": "a", "read_queues": True}]}, "must be a number from 1 to 1024"),
        ({"topics": [{"name": "a", "type": "odd"}]}, "'type' must be one of normal, fifo"),
        ({"topics": [{"name": "a", "attributes": {"k": 1}}]}, "a mapping of texts to texts"),
        ({"groups": [{"name": "g", "retry": {"delays": [5]}}]}, "5, which is not a duration"),
        ({"groups": [{"name": "g", "retry": {"initial": "5s"}}]}, "'retry' must have 'delays'"),
        ({"users": [{"name": "u", "secret": 5}]}, "'secret' must be a text"),
        ({"users": [{"name": "u", "secret": "short"}]}, "a secret key has 8 to"),
        ({"users": [{"name": "u u"}]}, "user name 'u u' is invalid"),
        ({"quotas": [{"subject": "Nothing:x"}]}, "subject 'Nothing:x' is invalid"),
        ({"users": [{"name": "u", "policies": [{"resource": "*"}]}]}, "a list 'actions'"),
    ],
)
def test_an_object_with_an_error_is_named_and_left_out(change: dict[str, Any], reason: str) -> None:
    (section,) = change
    key = "subject" if section == "quotas" else "name"
    change[section].append({key: "User:good" if section == "quotas" else "good"})
    found, (problem,) = definitions_of({"version": 1, **change})
    assert [each.name.removeprefix("User:") for each in found[section]] == ["good"]
    assert reason in problem


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"version": 2}, "'version' must be 1, but is 2"),
        ({"topic": []}, "there is no field 'topic'; did you mean 'topics'?"),
        ({"topics": {}}, "'topics' must be a list"),
    ],
)
def test_what_is_no_document_of_definitions_is_refused(change: dict[str, Any], reason: str) -> None:
    with pytest.raises(ValueError, match=re.escape(reason)):
        definitions_of({"version": 1, **change})


def test_a_file_with_an_error_is_applied_without_it_but_not_pruned(
    groups: TwoGroups, tmp_path: Path
) -> None:
    topics = [{"name": "sound"}, {"name": "unsound", "queues": 1}, {"name": "odd", "type": "odd"}]
    file = written(tmp_path / "errors.json", {"version": 1, "topics": topics})
    refused = groups.run("cluster", "apply", file, "--prune", code=Exit.USAGE)
    assert "topics, unsound: " in refused.stderr
    assert "topics, odd: " in refused.stderr
    applied = groups.run("cluster", "apply", file, code=Exit.FAILED)
    assert "has 2 errors. Correct it and repeat the command." in applied.stderr
    assert groups.json("topic", "describe", "sound")["read_queues"]
    again = groups.run("cluster", "apply", file, code=Exit.FAILED)
    assert "Create" not in again.stdout


def test_a_file_that_is_no_document_is_refused(groups: TwoGroups, tmp_path: Path) -> None:
    for name, text, reason in (
        ("a.json", "{", "Expecting"),
        ("a.yaml", "a: [", "no YAML: "),
        ("b.yaml", "- 1", "a document of definitions is a mapping"),
        ("deep.json", "[" * 100_000, "too many levels"),
        ("deep.yaml", "[" * 100_000, "too many levels"),
    ):
        (tmp_path / name).write_text(text)
        refused = groups.run("cluster", "apply", str(tmp_path / name), code=Exit.USAGE)
        assert reason in refused.stderr, refused.stderr
    groups.run("cluster", "apply", str(tmp_path / "none.yaml"), code=Exit.USAGE)


NAME = st.text(st.characters(codec="utf-8", exclude_categories=["Cs"]), min_size=1, max_size=9)
ATTRIBUTES = st.dictionaries(NAME, NAME, max_size=2)
TOPIC = st.builds(
    v1.TopicConfig,
    name=NAME,
    read_queues=st.integers(1, 1024),
    write_queues=st.integers(1, 1024),
    perm=st.sampled_from([0, 2, 4, 6]),
    message_type=st.sampled_from([-1, 1, 2, 3]),
    attributes=ATTRIBUTES,
)
GROUP = st.builds(
    v1.GroupConfig,
    name=NAME,
    orderly=st.booleans(),
    max_attempts=st.integers(1, 1000),
    consume_enable=st.booleans(),
    retry_queues=st.integers(1, 9),
    retry=st.builds(v1.GroupRetry, delays_ms=st.lists(st.integers(1, 10**7), max_size=3)),
    attributes=ATTRIBUTES,
)


@given(topics=st.lists(TOPIC, max_size=2, unique_by=lambda topic: topic.name), group=GROUP)
def test_an_exported_document_defines_the_same_objects(
    topics: list[v1.TopicConfig], group: v1.GroupConfig
) -> None:
    document = document_of({"topics": topics, "groups": [group], "users": [], "quotas": []})
    read, _ = definitions_of(yaml.safe_load("\n".join(yaml_lines(document))))
    assert [each.over(None) for each in read["topics"]] == topics
    (again,) = (each.over(None) for each in read["groups"])
    again.retry.SetInParent()
    assert again == group
