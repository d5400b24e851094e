"""A server that would serve other machines without authentication ends with exit code 2."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from cometmq.broker.base.config import BrokerConfig
from cometmq.broker.proxy.base.config import ProxyConfig
from cometmq.nameserver.config import NameserverConfig
from cometmq.nodes.addresses import is_loopback

#: Spellings of "all addresses" that resolvers accept, and of addresses of other machines.
EVERYWHERE = ("0.0.0.0", "0", "0x0", "0.0", "00.0.0.0", "::", "[::]", "::0", "::ffff:0.0.0.0")
ELSEWHERE = ("192.0.2.1", "::ffff:192.0.2.1", "node-1.example", "localhost.example", "", " ")
SERVERS = {
    "namesrv": ("--listen-port", "0"),
    "broker": ("--grpc-server-port", "0", "--ha-listen-port", "0"),
    "proxy": ("--grpc-server-port", "0", "--namesrv-addr", "127.0.0.1:1"),
}


@pytest.mark.parametrize("address", EVERYWHERE + ELSEWHERE)
def test_no_other_spelling_counts_as_this_machine(address: str) -> None:
    assert not is_loopback(address)


@pytest.mark.parametrize("address", ["127.0.0.1", "127.1.2.3", "::1", "[::1]", "localhost"])
def test_addresses_of_this_machine_are_loopback(address: str) -> None:
    assert is_loopback(address)


@pytest.mark.parametrize("make", [BrokerConfig, NameserverConfig, ProxyConfig])
@pytest.mark.parametrize("address", ["[::1]", "[::1]:80", "a b", "host:1", "10.0.0.1/8", ""])
def test_an_address_that_cannot_be_bound_is_refused_by_name(
    make: Callable[..., object], address: str
) -> None:
    with pytest.raises(ValueError, match=r"bindAddress=.* is neither an IP address") as error:
        make(bind_address=address)
    assert ("without brackets" in str(error.value)) is (address == "[::1]")


@pytest.mark.parametrize("server", SERVERS)
@pytest.mark.real_start
def test_a_refused_server_ends_with_exit_code_2(tmp_path: Path, server: str) -> None:
    command = [sys.executable, "-P", "-m", "cometmq.cli.main", server, *SERVERS[server]]
    running = {
        address: subprocess.Popen(
            [*command, "--bind-address", address],
            cwd=tmp_path,
            env={"HOME": str(tmp_path), "PATH": ""},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for address in ("0x0", "::", "::ffff:0.0.0.0")
    }
    for address, process in running.items():
        try:
            output, _ = process.communicate(timeout=120)
        finally:
            process.kill()
        assert process.returncode == 2, output
        assert f"bindAddress={address} with authentication off" in output
    assert list(tmp_path.iterdir()) == []
