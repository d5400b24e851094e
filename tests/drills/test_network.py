"""The proxies of the drills pass bytes on, hold, delay, refuse and reset."""

from __future__ import annotations

import os
import socket
import threading
import time
from collections.abc import Iterator

import pytest

from cometmq.drills import owners
from cometmq.drills.network import CLIENT, Network
from cometmq.drills.owners import has_socket, socket_inode
from cometmq.tests.harness.ports import free_port

WITHIN_S = 10.0


class Echo:
    """A server that returns what it receives."""

    def __init__(self) -> None:
        self.socket = socket.create_server(("127.0.0.1", 0))
        self.address: tuple[str, int] = self.socket.getsockname()
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self.socket.accept()
            except OSError:
                return
            threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _serve(self, connection: socket.socket) -> None:
        try:
            while data := connection.recv(65536):
                connection.sendall(data)
        except OSError:
            pass
        connection.close()


@pytest.fixture
def plain() -> Iterator[tuple[Network, tuple[str, int]]]:
    """Make a network with one node and dialling sockets of no node."""
    yield from made({})


@pytest.fixture
def owned() -> Iterator[tuple[Network, tuple[str, int]]]:
    """Make a network in which this process is the node `me`."""
    yield from made({"me": os.getpid()})


def made(owners: dict[str, int]) -> Iterator[tuple[Network, tuple[str, int]]]:
    echo, network = Echo(), Network(lambda: owners)
    public = ("127.0.0.1", free_port())
    network.add("node", public, echo.address)
    network.up("node")
    yield network, public
    network.close()
    echo.socket.close()


def dial(address: tuple[str, int]) -> socket.socket:
    connection = socket.create_connection(address, WITHIN_S)
    connection.settimeout(WITHIN_S)
    return connection


def silent(connection: socket.socket, seconds: float = 0.3) -> bool:
    connection.settimeout(seconds)
    try:
        return connection.recv(1, socket.MSG_PEEK) == b"?"
    except TimeoutError:
        return True
    finally:
        connection.settimeout(WITHIN_S)


def test_bytes_and_the_end_of_stream_pass(plain: tuple[Network, tuple[str, int]]) -> None:
    with dial(plain[1]) as connection:
        sent = os.urandom(1 << 20)
        threading.Thread(target=connection.sendall, args=(sent,), daemon=True).start()
        got = b""
        while len(got) < len(sent):
            got += connection.recv(1 << 16)
        assert got == sent
        connection.shutdown(socket.SHUT_WR)
        assert connection.recv(1) == b""


def test_a_held_edge_delivers_after_healing(plain: tuple[Network, tuple[str, int]]) -> None:
    network, public = plain
    with dial(public) as connection:
        connection.sendall(b"one")
        assert connection.recv(3) == b"one"
        network.cut(CLIENT, "node", both=False)
        connection.sendall(b"two")
        assert silent(connection)
        network.heal(CLIENT, "node")
        assert connection.recv(3) == b"two"
        network.cut("node", CLIENT, both=False)  # the reverse direction only
        connection.sendall(b"six")
        assert silent(connection)
        network.heal_all()
        assert connection.recv(3) == b"six"


def test_an_edge_has_the_dialling_node(owned: tuple[Network, tuple[str, int]]) -> None:
    network, public = owned
    network.cut(CLIENT, "node")
    with dial(public) as connection:
        connection.sendall(b"mine")
        assert connection.recv(4) == b"mine"  # not a connection of a client
        network.isolate("node", ["me"])
        connection.sendall(b"held")
        assert silent(connection)
        with dial(public) as late:  # a new connection is held as well
            late.sendall(b"late")
            assert silent(late)
            network.heal_all()
            assert (connection.recv(4), late.recv(4)) == (b"held", b"late")


def test_delay(plain: tuple[Network, tuple[str, int]]) -> None:
    network, public = plain
    network.delay(CLIENT, "node", 0.2)
    with dial(public) as connection:
        begin = time.monotonic()
        connection.sendall(b"slow")
        assert connection.recv(4) == b"slow"
        assert time.monotonic() - begin >= 0.2


def test_reset_and_refusal(plain: tuple[Network, tuple[str, int]]) -> None:
    network, public = plain
    with dial(public) as connection:
        connection.sendall(b"x")
        assert connection.recv(1) == b"x"
        assert network.reset(CLIENT, "node") == 1
        with pytest.raises(ConnectionResetError):
            connection.recv(1)
    network.down("node")
    with pytest.raises(ConnectionRefusedError):
        dial(public)
    network.up("node")
    dial(public).close()


def test_a_closed_descriptor_does_not_hide_its_process(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Otherwise a node that redials constantly passes a held edge (drill 8)."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = server.getsockname()
        with socket.create_connection(address) as mine:
            inode = socket_inode(mine.getsockname(), address)
            assert inode
            real = os.readlink
            gone = iter([True])

            def readlink(path: os.PathLike[str]) -> str:
                if next(gone, False):
                    raise FileNotFoundError(path)
                return real(path)

            monkeypatch.setattr(os, "readlink", readlink)
            assert has_socket(os.getpid(), inode)
            assert not socket_inode(mine.getsockname(), ("127.0.0.2", address[1]))


@pytest.mark.parametrize("family", [socket.AF_INET, socket.AF_INET6])
def test_the_kernel_and_its_table_name_the_same_socket(family: socket.AddressFamily) -> None:
    with socket.create_server(("127.0.0.3", 0)) as server, socket.socket(family) as mine:
        to = server.getsockname()
        mine.connect(to if family is socket.AF_INET else ("::ffff:127.0.0.3", to[1]))
        _, source = server.accept()
        expected = os.fstat(mine.fileno()).st_ino
        assert (owners._look_for(source, to), socket_inode(source, to)) == (expected, expected)


def test_callers_that_gave_up_do_not_delay_others() -> None:
    """Otherwise each costs a third of a second, and a busy machine gets no connection at all."""
    if not owners._kernel_answers():
        pytest.skip("this kernel has no sock_diag")
    begun = time.monotonic()
    for port in range(20_000, 20_200):
        assert not socket_inode(("127.9.9.9", port), ("127.9.9.8", 9876))
    assert time.monotonic() - begun < 30.0
