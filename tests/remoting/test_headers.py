"""Typed headers: recorded requests are read; malformed values are refused with Java's sentences."""

from __future__ import annotations

import pytest

from cometmq.remoting import headers
from cometmq.remoting.codes import Request
from cometmq.remoting.header_fields import HeaderError, read
from cometmq.tests.remoting.recordings import frames, scenarios

LAYOUTS = {
    Request.PULL_MESSAGE: headers.PullMessage,
    Request.QUERY_CONSUMER_OFFSET: headers.QueryConsumerOffset,
    Request.UPDATE_CONSUMER_OFFSET: headers.UpdateConsumerOffset,
    Request.SEARCH_OFFSET_BY_TIMESTAMP: headers.SearchOffset,
    Request.GET_MAX_OFFSET: headers.QueueOfTopic,
    Request.GET_MIN_OFFSET: headers.QueueOfTopic,
    Request.GET_EARLIEST_MSG_STORETIME: headers.QueueOfTopic,
    Request.QUERY_MESSAGE: headers.QueryMessage,
    Request.VIEW_MESSAGE_BY_ID: headers.ViewMessage,
    Request.UNREGISTER_CLIENT: headers.UnregisterClient,
    Request.CONSUMER_SEND_MSG_BACK: headers.SendBack,
    Request.GET_CONSUMER_LIST_BY_GROUP: headers.ConsumerGroup,
    Request.GET_ROUTEINFO_BY_TOPIC: headers.RouteOfTopic,
    Request.SEND_MESSAGE: headers.SendMessage,
    Request.SEND_MESSAGE_V2: headers.SendMessage,
    Request.SEND_BATCH_MESSAGE: headers.SendMessage,
}
BY_LETTER = (Request.SEND_MESSAGE_V2, Request.SEND_BATCH_MESSAGE)


def test_every_recorded_request_with_a_layout_is_read() -> None:
    seen = set()
    for scenario in scenarios():
        for recorded in frames(scenario):
            command = recorded.command
            if command.is_response or command.code not in LAYOUTS:
                continue
            code = Request(command.code)
            read(LAYOUTS[code], command.fields, letters=code in BY_LETTER)
            seen.add(code)
    assert seen == set(LAYOUTS)


def test_a_missing_field_is_named() -> None:
    with pytest.raises(HeaderError, match="the custom field <queueId> is null"):
        read(headers.QueueOfTopic, {"topic": "T"})
    with pytest.raises(HeaderError, match="the custom field <a> is null"):
        read(headers.SendMessage, {}, letters=True)


@pytest.mark.parametrize("value", ["", "x", "1.0", " 1", "1_0", "٣", "--1", "2147483648", "9" * 99])
def test_a_malformed_number_is_refused(value: str) -> None:
    with pytest.raises(HeaderError, match="For input string"):
        read(headers.QueueOfTopic, {"topic": "T", "queueId": value})


def test_numbers_have_their_whole_range() -> None:
    found = {"topic": "T", "queueId": "-2147483648", "timestamp": "-9223372036854775808"}
    header = read(headers.SearchOffset, found)
    assert (header.queue_id, header.timestamp_ms) == (-(1 << 31), -(1 << 63))
