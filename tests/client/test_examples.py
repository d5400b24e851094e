"""Every program of docs/sdk.md runs, against a real broker."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from cometmq.client.testing.broker import TestBroker

PAGE = Path(__file__).resolve().parents[2] / "docs" / "sdk.md"
BLOCK = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)
TOPICS = {
    "orders": "normal",
    "steps": "fifo",
    "later": "delay",
    "payments": "transaction",
    "ranked": "priority",
    "chats": "lite",
}
PROGRAMS = BLOCK.findall(PAGE.read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def broker() -> Iterator[TestBroker]:
    with TestBroker() as made:
        for name, kind in TOPICS.items():
            made.create_topic(name, type=kind)
        made.create_group("readers", parent="chats")
        yield made


def test_docs_sdk_has_at_least_eight_programs() -> None:
    assert len(PROGRAMS) >= 8


@pytest.mark.parametrize("number", range(len(PROGRAMS)))
def test_a_documented_program_runs(number: int, broker: TestBroker) -> None:
    assert "127.0.0.1:8081" in PROGRAMS[number]
    program = PROGRAMS[number].replace("127.0.0.1:8081", broker.endpoints)
    exec(compile(program, f"docs/sdk.md, program {number}", "exec"), {"__name__": "example"})
