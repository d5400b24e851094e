"""Generated requests and records have the same bytes on the native and the Python path.

The gate compares 50,000 of each (`example_budget.py`); `send_cases.py`, `receive_cases.py` and
`ack_cases.py` compare ten million by command.
"""

from __future__ import annotations

import pytest

from cometmq.proto import native
from cometmq.tests.broker.messages import receive_cases
from cometmq.tests.broker.pop import ack_cases
from cometmq.tests.broker.sending import send_cases

from ..example_budget import scaled

GENERATED = scaled(200_000)
SEED = 7

pytestmark = pytest.mark.skipif(
    not native.is_available(), reason="the native crate is not installed (scripts/native_door)"
)


def test_generated_requests_are_planned_as_by_the_python_path() -> None:
    assert send_cases.run(GENERATED, SEED).equal > GENERATED / 4


def test_generated_records_are_converted_as_by_the_python_path() -> None:
    assert receive_cases.run(GENERATED, SEED).equal > GENERATED / 2


def test_generated_acknowledgements_are_read_as_by_the_python_path() -> None:
    assert ack_cases.run(GENERATED, SEED).equal > GENERATED / 2
