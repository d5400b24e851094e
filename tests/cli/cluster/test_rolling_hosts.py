"""Hosts that a nameserver names are operands of a rolling restart, never options."""

from __future__ import annotations

import pytest

from cometmq.cli.ha.rolling import BROKER_COMMAND, _command
from cometmq.operations.errors import CliError


@pytest.mark.parametrize("host", ["10.0.0.1", "::1", "broker-a.example", "broker_1", "a"])
def test_a_host_is_an_operand_of_ssh(host: str) -> None:
    address = f"[{host}]:8081" if ":" in host else f"{host}:8081"
    assert _command(BROKER_COMMAND, address, 1).startswith(f"ssh -- {host} sudo ")


@pytest.mark.parametrize(
    "address", ["-oProxyCommand=touch:8081", "a b:1", "$(x):1", "a;b:1", ":1", "host", "", "a\nb:1"]
)
def test_another_text_is_given_to_no_command(address: str) -> None:
    with pytest.raises(CliError, match="no command is run"):
        _command(BROKER_COMMAND, address, 1)
