"""Identity of acceptors under changing addresses: a majority counts acceptors, not addresses."""

import asyncio
import logging
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from cometmq.ha.core.cas_register import Ballot, Vote
from cometmq.nameserver.acceptor_store import ID_FILE, AcceptorStore
from cometmq.nameserver.acceptors import Acceptor, DuplicateReports, OwnAcceptor, PeerAcceptor
from cometmq.nameserver.controller_host import ReplicatedControllerHost
from cometmq.nameserver.meta_store import StoreUnavailableError
from cometmq.nameserver.register_store import Register, recover
from cometmq.nameserver.server import NameserverServer
from cometmq.nodes.node_links import NodeLinks
from cometmq.tests.harness.ports import free_ports
from cometmq.tests.nameserver.fake_broker import controller_config, until

CELL = "group/g"
TIMEOUT_S = 5.0


def opened(directory: Path) -> AcceptorStore:
    directory.mkdir(exist_ok=True)
    acceptor = AcceptorStore(directory)
    acceptor.open()
    return acceptor


async def with_votes(directory: Path) -> str:
    """Create the directory of an acceptor that has voted; returns its id."""
    acceptor = opened(directory)
    await acceptor.take_over({})
    assert (await acceptor.prepare(CELL, Ballot(1, "before"))).ok
    await acceptor.close()
    return acceptor.acceptor_id


@asynccontextmanager
async def nameserver(
    directory: Path, port: int, peers: list[str]
) -> AsyncIterator[ReplicatedControllerHost]:
    config = controller_config(directory, listen_port=port, controller_peers=",".join(peers))
    server = NameserverServer(config)
    await server.start()
    try:
        deciding = server._controller_host
        assert isinstance(deciding, ReplicatedControllerHost)
        yield deciding
    finally:
        await server.stop(0.2)


@asynccontextmanager
async def reached(*addresses: str) -> AsyncIterator[list[PeerAcceptor]]:
    peers = [
        PeerAcceptor(address, NodeLinks("the-token-of-the-tests"), TIMEOUT_S)
        for address in addresses
    ]
    try:
        yield peers
    finally:
        for peer in peers:
            await peer.close()


def doubles_told(caplog: pytest.LogCaptureFixture) -> list[str]:
    texts = [record.getMessage() for record in caplog.records]
    return sorted(text for text in texts if text.startswith("acceptor.duplicate"))


@pytest.mark.parametrize("has_voted", [True, False])
async def test_a_nameserver_that_reaches_itself_under_another_name_counts_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, has_voted: bool
) -> None:
    """Otherwise it would be a majority of one, and decide beside the others."""
    with caplog.at_level(logging.INFO):
        (port,) = free_ports(1)
        if has_voted:
            await with_votes(tmp_path)
        names = [f"127.0.0.1:{port}", f"localhost:{port}"]
        async with nameserver(tmp_path, port, names) as alone:
            await until(lambda: len(doubles_told(caplog)) == 2)
            with pytest.raises(StoreUnavailableError):
                await alone._register.read(CELL)
            with pytest.raises(StoreUnavailableError):
                await alone._register.names()
            assert not await alone._is_held(CELL, alone._acceptor.peek(CELL))
            assert alone._acceptor.votes is has_voted
            assert not alone.controller.active
            identity = alone._acceptor.acceptor_id
        assert doubles_told(caplog) == [
            f"acceptor.duplicate address={name} id={identity}" for name in names
        ], "once each"


async def test_a_nameserver_under_two_names_is_not_a_majority(tmp_path: Path) -> None:
    port, absent, other = free_ports(3)
    await with_votes(tmp_path / "other")
    elsewhere = [f"127.0.0.1:{absent}", f"127.0.0.1:{other}"]
    names = [f"127.0.0.1:{port}", f"localhost:{port}"]
    acceptor = opened(tmp_path / "lost")
    async with nameserver(tmp_path / "other", port, elsewhere), reached(*names) as peers:
        acceptors: list[Acceptor] = [OwnAcceptor(acceptor), *peers]
        register = Register(acceptors, "life", lambda: 0, budget_s=0)
        with pytest.raises(StoreUnavailableError):
            await register.read(CELL)  # its own acceptor does not vote, the other one does, once
        waiting = asyncio.create_task(recover(acceptor, peers, DuplicateReports()))
        await asyncio.sleep(0.5)
        assert not acceptor.votes, "not all others have returned their states"
        waiting.cancel()
        with suppress(asyncio.CancelledError):
            await waiting
        await acceptor.take_over({})
        await register.read(CELL)  # two of three, and two acceptors
        await register.stop()
    await acceptor.close()


async def test_three_nameservers_with_exchanged_addresses_keep_deciding(tmp_path: Path) -> None:
    """Each address leads to another nameserver than intended, but to each of them once."""
    ports = free_ports(3)
    addresses = [f"127.0.0.1:{port}" for port in ports]
    for index in (1, 2):
        await with_votes(tmp_path / f"ns{index}")
    acceptor = opened(tmp_path / "ns0")
    async with (
        nameserver(tmp_path / "ns1", ports[1], [addresses[0], addresses[2]]),
        nameserver(tmp_path / "ns2", ports[2], [addresses[0], addresses[1]]),
        reached(addresses[2], addresses[1]) as peers,
    ):
        async with asyncio.timeout(30):
            await recover(acceptor, peers, DuplicateReports())
        assert CELL in acceptor.names
    await acceptor.close()


async def test_an_acceptor_id_is_created_once_before_the_first_vote(tmp_path: Path) -> None:
    identity = await with_votes(tmp_path)
    assert len(bytes.fromhex(identity)) == 16
    again = opened(tmp_path)
    assert again.acceptor_id == identity
    assert (await again.prepare(CELL, Ballot(2, "p"))).acceptor_id == identity
    await again.close()
    (tmp_path / "cells").unlink()
    lost = opened(tmp_path)
    assert (lost.acceptor_id, lost.votes) == (identity, False)
    await lost.close()


@pytest.mark.parametrize("harm", [b"", b"nonsense" * 9, None])
async def test_a_directory_without_an_acceptor_id_gets_one_and_keeps_its_votes(
    tmp_path: Path, harm: bytes | None
) -> None:
    first = await with_votes(tmp_path)
    path = tmp_path / ID_FILE
    if harm is None:
        path.unlink()
    else:
        path.write_bytes(harm)
    acceptor = opened(tmp_path)
    made = acceptor.acceptor_id
    assert len(made) == len(first)
    assert made != first
    assert acceptor.votes
    assert acceptor.peek(CELL).promised == Ballot(1, "before")
    await acceptor.close()
    again = opened(tmp_path)
    assert again.acceptor_id == made
    await again.close()


@pytest.mark.parametrize("error", [asyncio.CancelledError, RuntimeError])
async def test_a_phase_ends_when_a_call_raises_an_unexpected_error(
    tmp_path: Path, error: type[BaseException]
) -> None:
    class Odd:
        def __init__(self, name: str) -> None:
            self.name = name

        async def prepare(self, _cell: str, _ballot: Ballot) -> Vote:
            await asyncio.sleep(0.01)
            raise error

    acceptor = opened(tmp_path / "a")
    await acceptor.take_over({})
    odd: Any = [Odd("one"), Odd("two")]
    register = Register([OwnAcceptor(acceptor), *odd], "life", time.monotonic_ns, 0.2)
    with pytest.raises(StoreUnavailableError):
        async with asyncio.timeout(TIMEOUT_S):
            await register.change(CELL, lambda _old: b"new")
    await register.stop()
    await acceptor.close()
