"""pytest plugin `cometmq`: a real broker for an application's tests.

    def test_orders(cometmq_broker, cometmq_topic):
        application = start(cometmq_broker.endpoints, cometmq_topic)
        cometmq_broker.clock.advance("2h")

`cometmq_broker` has session scope; `cometmq_topic` is new for every test. Options: `--cometmq-log`
on the command line; `cometmq_settings` (lines of broker.conf) and `cometmq_topic_type` in the ini
file. The SDK is imported by the fixtures only, so other tests do not pay for it.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from .broker import TestBroker

_QUEUES = 4


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the plugin's options."""
    group = parser.getgroup("cometmq", "a CometMQ broker for tests")
    group.addoption(
        "--cometmq-log",
        action="store_true",
        help="Show the broker's log when the session ends.",
    )
    parser.addini("cometmq_settings", "Lines of broker.conf for the broker.", type="linelist")
    parser.addini("cometmq_topic_type", "Type of cometmq_topic.", default="normal")


@pytest.fixture(scope="session")
def cometmq_broker(request: pytest.FixtureRequest) -> Iterator[TestBroker]:
    """A real broker in a separate process, on a free port."""
    from .broker import TestBroker

    settings = {}
    for line in request.config.getini("cometmq_settings"):
        key, _, value = line.partition("=")
        settings[key.strip()] = value.strip()
    with TestBroker(settings=settings) as broker:
        yield broker
        if request.config.getoption("--cometmq-log"):
            print(broker.log(1_000))


@pytest.fixture
def cometmq_topic(cometmq_broker: TestBroker, request: pytest.FixtureRequest) -> str:
    """The name of a new topic."""
    name = f"test-{uuid.uuid4().hex[:12]}"
    kind = str(request.config.getini("cometmq_topic_type"))
    return cometmq_broker.create_topic(name, type=kind, queues=_QUEUES)
