"""Bodies of classic clients: bounded in all they name before anything is made of them."""

from __future__ import annotations

import base64
import json
from typing import Any

import pytest

from cometmq.broker.classic.base.bodies import (
    BatchAck,
    batch_ack,
    heartbeat,
    json_object,
    queue_list,
)
from cometmq.proto.request_limits import ACKS_MAX
from cometmq.remoting.codes import Reply, Request
from cometmq.remoting.command import Command
from cometmq.remoting.connection import RemotingError
from cometmq.remoting.headers import ViewMessage

ALL_BITS = base64.b64encode(b"\xff" * 64).decode()
BITS = 512


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
    with pytest.raises(RemotingError, match=f"over {ACKS_MAX} messages"):
        acks(*allowed, entry("one-more")).document(batch_ack)


@pytest.mark.parametrize("name", ["so", "pt", "it", "rq", "q"])
@pytest.mark.parametrize("value", [10**400, 1 << 63, -(1 << 63) - 1, "x", [7], None])
def test_a_number_of_an_acknowledgement_has_64_bits(name: str, value: Any) -> None:
    with pytest.raises(RemotingError, match=f"{name} is not a 64-bit integer"):
        acks(entry(**{name: value})).document(batch_ack)


def test_an_acknowledgement_is_read_as_fastjson_reads_it() -> None:
    loose: dict[str, Any] = {"so": "7", "pt": 1.0, "it": "2", "rq": False, "q": "3", "r": 1, "c": 5}
    found = acks(entry(bits="BQ==", **loose)).document(batch_ack)
    assert found == BatchAck({("5", "orders"): [f"7 1 2 0 1 broker-a 3 {each}" for each in (7, 9)]})


def test_the_groups_of_a_heartbeat_that_cannot_be_read_are_left_out() -> None:
    wrong = [1, {}, {"groupName": []}, {"groupName": "g", "subscriptionDataSet": [{"topic": {}}]}]
    document = {
        "clientID": 1,
        "consumerDataSet": [*wrong, {"groupName": "good"}],
        "producerDataSet": [1, {"groupName": 7}, *({"groupName": "p"} for _ in range(1_000))],
    }
    found = Command(Request.HEART_BEAT, body=json.dumps(document).encode()).document(heartbeat)
    assert (found.client_id, [each.group for each in found.consumers]) == ("1", ["good"])
    assert found.producer_groups == ["7", *["p"] * 498]
    assert [error.code for error in found.problems] == [Reply.SYSTEM_BUSY, *[1] * 5]


def test_a_body_that_only_fastjson_reads_is_an_object_or_refused() -> None:
    found = json_object(b"""{clientID:'\\ud800', {"brokerName":"b","queueId":0,"topic":"T"}:1}""")
    assert found["clientID"] == "?"
    for wrong in (b'{"clientID":"\\ud800"}', b"[" * 100_000, b"{a:1}" + b" " * (32 << 10)):
        with pytest.raises(RemotingError):
            json_object(wrong)


def test_the_bits_of_an_acknowledgement_and_its_kind_are_bounded() -> None:
    for more in ({"bits": ALL_BITS + "AAAA"}, {"bits": "!"}, {"bits": None}, {"r": "3" * 9}):
        with pytest.raises(RemotingError):
            acks(entry(**more)).document(batch_ack)


def test_a_request_is_read_in_one_way() -> None:
    command = Command(Request.VIEW_MESSAGE_BY_ID, {"offset": "+7"})
    assert command.header(ViewMessage) is command.header(ViewMessage)
    with pytest.raises(AssertionError, match="read in two ways"):
        command.document(queue_list)
