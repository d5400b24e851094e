"""Lost responses are repeated for the same attempt id."""

from __future__ import annotations

from pathlib import Path

from cometmq.broker.pop.attempts import CLIENTS_MAX, OF_CLIENT_MAX, Attempts
from cometmq.proto import v2
from cometmq.tests.broker.desk import desk, parse_received


def test_an_attempt_gets_its_lost_messages_once() -> None:
    attempts = Attempts()
    attempts.give("c", "a", {(0, 1): [(5, 100)]})
    assert attempts.ask("c", "other") is None
    assert attempts.ask("d", "a") is None
    assert attempts.ask("c", "a") == {(0, 1): [(5, 100)]}
    assert attempts.ask("c", "a") is None


def test_a_client_that_leaves_is_removed() -> None:
    attempts = Attempts()
    attempts.give("c", "a", {})
    attempts.forget("c")
    attempts.forget("unknown")
    assert attempts.ask("c", "a") is None


def test_memory_is_bounded_by_clients_and_by_answers() -> None:
    attempts = Attempts()
    for number in range(OF_CLIENT_MAX + 1):
        attempts.give("c", f"a{number}", {})
    assert attempts.ask("c", "a0") is None
    assert attempts.ask("c", "a1") == {}
    for number in range(CLIENTS_MAX):
        attempts.give(f"c{number}", "a", {})
    assert attempts.ask("c", "a2") is None, "the least recently active one"


async def test_messages_of_a_lost_response_are_redelivered_to_the_same_attempt(
    tmp_path: Path,
) -> None:
    async with desk(tmp_path) as one:
        one.topic("t", queues=1)
        await one.sent("t", b"lost")
        got = await one.receive("t", "g", auto_renew=True, attempt_id="first")
        assert got.bodies == [b"lost"]
        # Another call of the same client does not mean that this one failed.
        await one.nothing("t", "g", auto_renew=True, attempt_id="second")
        again = one.start_receive("t", "g", auto_renew=True, attempt_id="first")
        one.advance(1_500)
        found = parse_received(await again)
        assert found.code == v2.OK
        assert found.bodies == [b"lost"]
        assert found.messages[0].system_properties.delivery_attempt == 2
