"""Administrative calls: what they do in one turn of the event loop does not grow with the number of
objects. Turns are measured in calls of functions, which do not depend on the machine."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import pytest

from cometmq.broker import services
from cometmq.broker.admin import pages
from cometmq.broker.assembly.parts import Broker
from cometmq.broker.base import slices
from cometmq.broker.metadata.tables import Group, Topic
from cometmq.front.context import RequestContext
from cometmq.front.service import Method
from cometmq.proto import v1
from cometmq.proto.errors import RpcFailure, WireError
from cometmq.tests.broker.live import running, settings
from cometmq.tests.broker.turns import busiest_turn

FEW, MANY = 200, 2_000
#: Calls in one turn for each object: looks at its name. 100,000 names are 50 ms.
LOOK = 7
#: Of a turn, whatever the number of objects.
TURN = 4_000
#: Written last: each removes what the others read.
LAST = ("DeleteTopic", "DeleteGroup")


def filled(node: Broker, number: int) -> None:
    """Create topics, groups, and offsets of one group on all topics and of all groups on one."""
    node.meta_log.write_topic(Topic("first", 1, 1))  # begins the log, with a snapshot
    for n in range(number):
        node.metadata.put_topic(Topic(f"t{n:06d}", 2, 2))
        node.metadata.put_topic(Topic(f"%RETRY%g{n:06d}_t000001", 1, 1))
        node.metadata.put_group(Group(f"g{n:06d}"))
        node.offsets.commit(f"t{n:06d}", "g000001", 0, 0)
        node.offsets.commit("t000001", f"g{n:06d}", 0, 0)


def request_of(name: str) -> Any:
    """Return a request with the largest answer."""
    request = getattr(v1, name + "Request")()
    fields = request.DESCRIPTOR.fields_by_name
    if name.endswith(("Topic", "Group")) and "name" in fields:
        request.name = ("t" if "Topic" in name else "g") + "000001"
    for field, value in (
        ("count", 1_000),
        ("dry_run", True),
        ("topic", "t000001"),
        ("orderly", True),
    ):
        if field in fields:
            setattr(request, field, value)
    return request


async def turns_of(root: Path, patch: pytest.MonkeyPatch, number: int) -> dict[str, int]:
    """Return the calls in the busiest turn of each method of a broker with `number` objects."""
    methods: list[Method] = []
    for name in ("administration", "reading"):
        make = getattr(services, name)

        def kept(*parts: Any, make: Any = make, **named: Any) -> list[Method]:
            made: list[Method] = make(*parts, **named)
            methods.extend(made)
            return made

        patch.setattr(services, name, kept)
    found = {}
    async with running(settings(root)) as live:
        filled(live.node, number)
        rest = live.node.runtime.clock.steady_ns() + 10**10
        ctx = RequestContext("c@1", "PYTHON", "5.1.2", "", "127.0.0.1:4711", rest)
        for method in sorted(methods, key=lambda one: one.path.endswith(LAST)):
            name = method.path.rpartition("/")[2]
            try:
                found[name] = await busiest_turn(partial(method.handler, request_of(name), ctx))
            except (RpcFailure, WireError):
                continue  # needs other fields: tests of its own
        metrics = live.server.instance.metrics
        assert metrics is not None
        found["metrics"] = await busiest_turn(metrics.scrape)
    return found


async def test_turns_of_administrative_calls_do_not_grow_with_the_objects(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(slices, "SLICE_NS", 0)  # each step that may pause does
    monkeypatch.setattr(pages, "PAGE_MAX", 100)
    with monkeypatch.context() as patch:
        few = await turns_of(tmp_path / "few", patch, FEW)
    with monkeypatch.context() as patch:
        many = await turns_of(tmp_path / "many", patch, MANY)
    assert {
        "metrics",
        "ListTopics",
        "ListGroups",
        "DescribeTopic",
        "DescribeGroup",
        "CreateGroup",
        *LAST,
    } <= many.keys()
    objects = 2 * (MANY - FEW)  # topics, and those of retries
    grown = {
        name: (few[name], calls)
        for name, calls in many.items()
        if calls - few[name] > LOOK * objects or calls > TURN + LOOK * 2 * MANY
    }
    assert not grown
