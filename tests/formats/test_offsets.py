"""The consumer offsets of the golden directories, as our broker reads them.

What the workloads committed is known: `CG` at 17 and 5 by hand, and the consumer of `retry` read
all of its topic. Every file of every case must come back as it is when our broker writes it again.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from cometmq.broker.offsets.consumer_offsets import ConsumerOffsets
from cometmq.store.format.json_file import load, loads
from cometmq.tests.formats.cases import CASES, NOW_MS, read_back, unpack

Key = tuple[str, str, int]
_NORMAL: dict[Key, int | None] = {
    ("TopicNormal", "CG", 0): 17,
    ("TopicNormal", "CG", 1): None,
    ("TopicNormal", "CG", 3): 5,
    ("TopicUnicode", "CG", 0): None,
}
#: (topic, group, queue) -> offset; None where nothing was committed.
COMMITTED: dict[str, dict[Key, int | None]] = {
    "normal": _NORMAL,
    "crc": _NORMAL,
    "ext": _NORMAL,
    "retry": {("TopicRetry", "CGR", 0): 10, ("TopicRetry", "CGR", 1): 10},
}


def offsets_of(root: Path) -> ConsumerOffsets:
    offsets = ConsumerOffsets(root / "config" / "consumerOffset.json", lambda: NOW_MS)
    offsets.load()
    return offsets


@pytest.mark.parametrize("case", sorted(COMMITTED))
def test_committed_offsets_are_read(case: str, tmp_path: Path) -> None:
    offsets = offsets_of(unpack(case, tmp_path))
    for (topic, group, queue_id), expected in COMMITTED[case].items():
        assert offsets.get(topic, group, queue_id) == expected


@pytest.mark.parametrize("case", CASES)
def test_no_offset_lies_outside_of_its_queue(case: str, tmp_path: Path) -> None:
    root = unpack(case, tmp_path)
    table = (load(root / "config" / "consumerOffset.json") or {}).get("offsetTable", {})
    offsets = offsets_of(root)
    queues = read_back(case)["queues"]
    for name, positions in table.items():
        topic, _, group = name.partition("@")
        for queue_id, offset in positions.items():
            assert offsets.get(topic, group, int(queue_id)) == offset
            known = queues.get(topic, {}).get(str(queue_id), {"max": 0})
            assert 0 <= offset <= known["max"] or case == "transaction"


@pytest.mark.parametrize("case", CASES)
def test_a_rewritten_file_has_the_same_content(case: str, tmp_path: Path) -> None:
    path = unpack(case, tmp_path) / "config" / "consumerOffset.json"
    if not path.exists():
        assert case == "killed"  # it died before the first write
        return
    offsets = ConsumerOffsets(path, lambda: NOW_MS)
    offsets.load()
    before, after = comparable(path.read_text("utf-8")), comparable(offsets.render())
    assert {key: after.get(key) for key in before} == before


def comparable(text: str) -> dict[Any, Any]:
    """The topics of a group are a set; the version moves with every change."""
    found = loads(text)
    del found["dataVersion"]
    topics = found.get("groupTopicMap", {})
    return found | {"groupTopicMap": {group: sorted(names) for group, names in topics.items()}}
