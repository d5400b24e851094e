"""Lines about closed connections are limited: strangers choose their number."""

import logging

import pytest

from cometmq.front.clock import Clock
from cometmq.front.config import DoorConfig
from cometmq.remoting.connection import Shared


class Stopped(Clock):
    """A clock that tests move."""

    now_ns = 0

    def steady_ns(self) -> int:
        return self.now_ns


def test_a_flood_of_bad_connections_writes_few_lines(caplog: pytest.LogCaptureFixture) -> None:
    clock = Stopped()
    shared = Shared({}, DoorConfig(), clock)
    with caplog.at_level(logging.INFO, logger="cometmq.remoting.connection"):
        for number in range(1_000):
            shared.log_closed("no_handshake", f"10.0.0.1:{number}", "wrong version number")
        assert len(caplog.messages) == 20
        assert caplog.messages[0].startswith("remoting.no_handshake peer=10.0.0.1:0 reason=wrong")
        clock.now_ns += 60_000_000_000
        shared.log_closed("malformed", "10.0.0.1:1", "no frame")
        assert caplog.messages[20:] == [
            "remoting.not_logged lines=980",
            "remoting.malformed peer=10.0.0.1:1 reason=no frame",
        ]
