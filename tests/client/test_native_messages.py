"""200,000 generated messages of the SDK are written and read by the native crate as by Python.

`message_cases.py` compares ten million by command.
"""

from __future__ import annotations

import pytest

from cometmq.proto import native
from cometmq.tests.client import message_cases

GENERATED = 200_000
SEED = 7

pytestmark = pytest.mark.skipif(
    native.part("codec") is None, reason="the native crate is not installed (scripts/native_door)"
)


def test_generated_messages_are_written_and_read_as_by_python() -> None:
    assert message_cases.run(GENERATED, SEED).read > GENERATED / 8
