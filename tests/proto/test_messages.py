"""Messages of the private pool behave as protobuf promises: presence, oneofs, maps,
sub-messages."""

import pytest
from google.protobuf import timestamp_pb2
from google.protobuf.internal import api_implementation
from google.protobuf.message import DecodeError
from hypothesis import given
from hypothesis import strategies as st

from cometmq.proto import v1, v2

TEXT = st.text(max_size=40)


def test_protobuf_uses_the_upb_implementation() -> None:
    assert api_implementation.Type() == "upb"


def test_optional_fields_have_presence() -> None:
    properties = v2.SystemProperties()
    assert not properties.HasField("tag")
    properties.tag = ""
    assert properties.HasField("tag")
    assert v2.SystemProperties.FromString(properties.SerializeToString()).HasField("tag")


def test_oneofs_hold_one_member() -> None:
    answer = v2.ReceiveMessageResponse(status=v2.Status(code=v2.OK, message="OK"))
    assert answer.WhichOneof("content") == "status"
    answer.delivery_timestamp.FromMilliseconds(1)
    assert answer.WhichOneof("content") == "delivery_timestamp"
    assert v1.LeaderFrame(chunk=v1.Chunk(data=b"x")).WhichOneof("frame") == "chunk"


def test_times_are_of_our_pool_and_have_their_helpers() -> None:
    stamp = v2.Timestamp()
    stamp.FromMilliseconds(1_700_000_000_123)
    properties = v2.SystemProperties(
        born_timestamp=stamp, invisible_duration=v2.Duration(seconds=3)
    )
    again = v2.SystemProperties.FromString(properties.SerializeToString())
    assert again.born_timestamp.ToMilliseconds() == 1_700_000_000_123
    assert again.invisible_duration.ToMilliseconds() == 3000
    assert isinstance(again.born_timestamp, v2.Timestamp)


def test_times_of_the_default_pool_are_refused() -> None:
    foreign = timestamp_pb2.Timestamp(seconds=1)
    with pytest.raises((TypeError, AttributeError)):
        v2.SystemProperties(born_timestamp=foreign)
    with pytest.raises(TypeError):
        v2.SystemProperties().born_timestamp.CopyFrom(foreign)


def test_unknown_fields_survive_a_hop() -> None:
    newer = v2.Settings(client_properties={"k": "v"}).SerializeToString()
    hop = v2.Status.FromString(newer)  # Status has no field 9
    assert hop.SerializeToString() == newer


def test_truncated_bytes_are_refused() -> None:
    data = v2.SendMessageRequest(messages=[v2.Message(body=b"x" * 100)]).SerializeToString()
    for end in (1, 2, len(data) - 1):
        with pytest.raises(DecodeError):
            v2.SendMessageRequest.FromString(data[:end])


@given(
    topic=TEXT,
    body=st.binary(max_size=200),
    keys=st.lists(TEXT, max_size=3),
    properties=st.dictionaries(TEXT, TEXT, max_size=4),
    queue_id=st.integers(-(2**31), 2**31 - 1),
)
def test_a_message_survives_a_round_trip(
    topic: str, body: bytes, keys: list[str], properties: dict[str, str], queue_id: int
) -> None:
    message = v2.Message(topic=v2.Resource(name=topic), body=body, user_properties=properties)
    message.system_properties.keys.extend(keys)
    message.system_properties.queue_id = queue_id
    again = v2.Message.FromString(message.SerializeToString())
    assert again == message
    assert dict(again.user_properties) == properties
    assert list(again.system_properties.keys) == keys


@given(
    st.lists(
        st.tuples(TEXT, TEXT, st.integers(0, 2**31 - 1), st.integers(0, 2**63 - 1)), max_size=5
    )
)
def test_offsets_survive_a_round_trip(rows: list[tuple[str, str, int, int]]) -> None:
    offsets = v1.Offsets(
        entries=[
            v1.OffsetEntry(group=group, topic=topic, queue_id=queue, offset=offset)
            for group, topic, queue, offset in rows
        ]
    )
    again = v1.Offsets.FromString(offsets.SerializeToString())
    assert [(e.group, e.topic, e.queue_id, e.offset) for e in again.entries] == rows
