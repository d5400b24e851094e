"""What one address may have of a port: a number of connections. TLS handshakes take turns by
address, and not all of the loop's time."""

from __future__ import annotations

import asyncio

import pytest

from cometmq.front.config import DoorConfig
from cometmq.front.process import address_connections
from cometmq.remoting import handshakes
from cometmq.remoting.handshakes import Handshakes, Places


async def test_addresses_take_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(handshakes, "_INTERVAL_S", 0.0)
    turns, begun = Handshakes(), []

    async def begin(address: str) -> None:
        await turns.turn(address)
        begun.append(address)

    stranger = [asyncio.create_task(begin("10.0.0.1")) for _ in range(50)]
    await asyncio.sleep(0)
    await asyncio.gather(begin("10.0.0.2"), begin("10.0.0.3"))
    await asyncio.gather(*stranger)
    others = begun.index("10.0.0.2"), begun.index("10.0.0.3")
    assert max(others) <= 5, "two clients did not wait for the fifty of a stranger"
    assert len(begun) == 52


async def test_one_begins_at_a_time_and_one_that_was_given_up_takes_no_turn() -> None:
    turns = Handshakes()
    await turns.turn("a")
    waiting = [asyncio.create_task(turns.turn("a")) for _ in range(3)]
    await asyncio.sleep(0)
    assert not any(task.done() for task in waiting)
    waiting[0].cancel()
    await asyncio.gather(*waiting[1:])
    await turns.turn("a")  # at once, or after the pause of the last one


def test_an_address_has_a_number_of_connections_and_one_of_this_machine_any() -> None:
    places = Places()
    places.max = 2
    assert [places.take("192.0.2.1") for _ in range(3)] == [True, True, False]
    assert places.take("192.0.2.2")
    assert all(places.take(host) for host in 3 * ("127.0.0.1", "::1"))
    places.leave("192.0.2.1")
    assert places.take("192.0.2.1")


def test_a_network_of_ipv6_counts_as_one_address() -> None:
    places = Places()
    places.max = 1
    assert places.take("2001:db8::1")
    assert not places.take("2001:db8::2")
    assert places.take("2001:db8:0:1::1")
    assert places.take("::ffff:192.0.2.1")
    assert not places.take("192.0.2.1")


def test_an_address_has_half_of_a_port_unless_configured() -> None:
    assert address_connections(DoorConfig(), 100) == 50
    assert address_connections(DoorConfig(), 1) == 1
    assert address_connections(DoorConfig(front_max_address_connections=70), 100) == 70
