"""Bodies of classic clients: bounded in all they name before anything is made of them."""

from __future__ import annotations

import base64
import json
from typing import Any

import pytest

from cometmq.broker.classic.bodies import BatchAck, batch_ack, queue_list
from cometmq.remoting.codes import Request
from cometmq.remoting.command import Command
from cometmq.remoting.connection import RemotingError
from cometmq.remoting.headers import ViewMessage

ALL_BITS = base64.b64encode(b"\xff" * 64).decode()
BITS = 512
ACKS_MAX = 2_048


def acks(*entries: dict[str, Any]) -> Command:
    document = {"brokerName": "broker-a", "acks": list(entries)}
    return Command(Request.BATCH_ACK_MESSAGE, body=json.dumps(document).encode())


def entry(group: str = "shop", bits: str = ALL_BITS, **more: Any) -> dict[str, Any]:
    numbers = {"so": 7, "pt": 1, "it": 2, "rq": 0, "q": 3}
    return {"c": group, "t": "orders", "r": "0", "b": bits, **numbers, **more}


def test_a_batch_of_acknowledgements_names_the_handles_of_its_bits() -> None:
    bits = base64.b64encode(b"\x05").decode()
    found = acks(entry(bits=bits), entry(bits=bits, r="1")).document(batch_ack)
    handles = [f"7 1 2 0 {kind} broker-a 3 {offset}" for kind in (0, 1) for offset in (7, 9)]
    assert found == BatchAck({("shop", "orders"): handles})


def test_the_acknowledgements_of_all_groups_have_one_limit() -> None:
    allowed = [entry(f"group-{number}") for number in range(ACKS_MAX // BITS)]
    found = acks(*allowed).document(batch_ack)
    assert sum(map(len, found.handles.values())) == ACKS_MAX
    with pytest.raises(RemotingError, match="over 2048 messages"):
        acks(*allowed, entry("one-more")).document(batch_ack)


@pytest.mark.parametrize("name", ["so", "pt", "it", "rq", "q"])
@pytest.mark.parametrize("value", [10**400, 1 << 63, -(1 << 63) - 1, "7", 7.0, True, None])
def test_a_number_of_an_acknowledgement_has_64_bits(name: str, value: Any) -> None:
    with pytest.raises(RemotingError, match=f"{name} is not a 64-bit integer"):
        acks(entry(**{name: value})).document(batch_ack)


def test_the_bits_of_an_acknowledgement_and_its_kind_are_bounded() -> None:
    for more in ({"bits": ALL_BITS + "AAAA"}, {"bits": "!"}, {"bits": None}, {"r": "3" * 9}):
        with pytest.raises(RemotingError):
            acks(entry(**more)).document(batch_ack)


def test_a_request_is_read_in_one_way() -> None:
    command = Command(Request.VIEW_MESSAGE_BY_ID, {"offset": "+7"})
    assert command.header(ViewMessage) is command.header(ViewMessage)
    with pytest.raises(AssertionError, match="read in two ways"):
        command.document(queue_list)
