"""The native crate writes and reads the SDK's messages as Python does, and may be missing or old.

`message_cases.py` compares ten million generated messages by command, the gate 50,000
(`example_budget.py`).
"""

from __future__ import annotations

import pytest

from cometmq.client import message, outgoing
from cometmq.client.outgoing import python_request, send_request
from cometmq.proto import native, v2
from cometmq.tests.client import message_cases
from cometmq.tests.example_budget import scaled

GENERATED = scaled(200_000)
SEED = 7


@pytest.mark.skipif(
    not native.is_available(), reason="the native crate is not installed (scripts/native_door)"
)
def test_generated_messages_are_written_and_read_as_by_python() -> None:
    assert message_cases.run(GENERATED, SEED).read > GENERATED / 8


def test_messages_are_read_without_the_crate(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(message, "native_read", lambda: None)
    sent = v2.ReceiveMessageResponse(message=v2.Message(body=b"b"))
    status = v2.ReceiveMessageResponse(status=v2.Status(code=v2.OK))
    responses = [one.SerializeToString() for one in (sent, status, sent)]
    found, others = message.read_responses(responses, v2.ReceiveMessageResponse, "broker-a")
    assert [one.body for one in found] == [b"b", b"b"]
    assert others == [status]


def test_a_message_that_a_hook_changed_is_sent_as_changed() -> None:
    first = outgoing.outgoing("t", b"one", "id-1", 1_700_000_000_000, tag="a")
    second = outgoing.outgoing_like(first, [b"two"], lambda: "id-2")[0]
    second.proto = outgoing.message_proto(second)
    second.proto.user_properties["traceparent"] = "00-1"
    encoded = send_request([first, second], 3)
    assert encoded == python_request([first, second], 3)
    request = v2.SendMessageRequest.FromString(encoded)
    assert [one.body for one in request.messages] == [b"one", b"two"]
    assert [one.system_properties.queue_id for one in request.messages] == [3, 3]
    assert [one.system_properties.tag for one in request.messages] == ["a", "a"]
    assert [dict(one.user_properties) for one in request.messages] == [{}, {"traceparent": "00-1"}]
