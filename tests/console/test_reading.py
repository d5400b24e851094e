"""Searches of messages, and their bodies in every form."""

from __future__ import annotations

import csv
import gzip
import io
import json
import re
import time
import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cometmq.console import bodies
from cometmq.console.browse import SCANNED_MAX as SCANNED
from cometmq.console.browse import Queue, in_time_order, newest_first, offset_of, stored_ms
from cometmq.console.consumers import Facts, alarms_of, old_transactions
from cometmq.console.history import OBJECTS_MAX, Rates
from cometmq.console.inputs import moment_ms
from cometmq.console.pages.clients import client_rows
from cometmq.console.pages.dead_letters import REDRIVEN_MAX, fate_of, letter_row, places_of
from cometmq.console.pages.groups import clients_of, group_rows
from cometmq.console.pages.messages import copy_of
from cometmq.console.pages.paging import sorted_by
from cometmq.console.search import SEARCHED_BYTES, contains, take
from cometmq.operations.errors import CliError
from cometmq.operations.message_states import PAST
from cometmq.operations.pulling import Batch
from cometmq.proto import v1, v2

QUEUE = Queue("orders", "broker-a", 3)


def message(offset: int = 0, at_ms: int = 0, body: bytes = b"", **fields: object) -> v2.Message:
    properties = v2.SystemProperties(queue_offset=offset, **fields)  # type: ignore[arg-type]
    properties.store_timestamp.FromMilliseconds(at_ms)
    return v2.Message(body=body, system_properties=properties)


@given(st.lists(st.lists(st.integers(0, 50), max_size=12), max_size=5), st.integers(1, 4))
def test_queues_are_merged_by_time_and_each_keeps_its_order(
    times: list[list[int]], batch: int
) -> None:
    stored = {
        Queue("t", "b", n): [message(o, at) for o, at in enumerate(sorted(queue))]
        for n, queue in enumerate(times)
    }

    def read(queue: Queue, offset: int) -> Batch:
        found = stored[queue][offset : offset + batch]
        return Batch(offset + len(found), found)

    merged = list(in_time_order(list(stored), lambda _queue: 0, read))
    assert [stored_ms(one) for _, one in merged] == sorted(t for queue in times for t in queue)
    for queue, messages in stored.items():
        assert [offset_of(one) for at, one in merged if at == queue] == list(range(len(messages)))


@given(st.lists(st.lists(st.integers(0, 50), max_size=80), max_size=4), st.integers(1, 40))
def test_the_newest_messages_of_all_queues_are_first(times: list[list[int]], batch: int) -> None:
    stored = {
        Queue("t", "b", n): [message(o, at) for o, at in enumerate(sorted(queue))]
        for n, queue in enumerate(times)
    }

    def read(queue: Queue, offset: int, end: int) -> Batch:
        found = stored[queue][offset : offset + batch]  # perhaps beyond the end
        return Batch(offset + len(found), found)

    ends = {queue: len(messages) for queue, messages in stored.items()}
    merged = list(newest_first(ends, dict.fromkeys(ends, 0), read))
    assert [stored_ms(one) for _, one in merged] == sorted(
        (t for queue in times for t in queue), reverse=True
    )
    for queue, end in ends.items():
        assert [offset_of(one) for at, one in merged if at == queue] == list(range(end))[::-1]
    found, at, more = take(iter(merged), "", 0, (5, 1_000), newest_first=True)
    rest = list(newest_first({**ends, **at}, dict.fromkeys(ends, 0), read)) if more else []
    assert found + rest == merged, "a page goes on where the one before ended"


def test_a_page_ends_at_its_rows_its_bytes_its_time_or_the_limit_of_a_scan() -> None:
    stream = [(QUEUE, message(n, n, b"xx", tag="odd" if n % 2 else "even")) for n in range(100)]
    found, behind, more = take(stream, "odd", 0, (3, 1_000))
    assert [offset_of(one) for _, one in found] == [1, 3, 5]
    assert (behind[QUEUE], more) == (6, True)
    assert len(take(stream, "", 0, (50, 8))[0]) == 4
    found, _, more = take(stream, "", 9, (50, 1_000))
    assert (len(found), more) == (10, False)
    endless = ((QUEUE, message(n)) for n in range(SCANNED * 2))
    found, behind, more = take(endless, "nothing", 0, (3, 1_000))
    assert (found, behind[QUEUE], more) == ([], SCANNED, True)


def test_a_page_ends_when_it_has_compared_many_bytes_of_compressed_bodies() -> None:
    whole = gzip.compress(bytes(bodies.INFLATED_MAX))
    for bomb in (whole, gzip.compress(bytes(bodies.INFLATED_MAX - 1))[:-4]):  # or a damaged one
        stream = [(QUEUE, message(n, n, bomb, body_encoding=v2.GZIP)) for n in range(50)]
        found, behind, more = take(stream, "nothing", 0, (3, 1_000))
        assert (found, behind[QUEUE], more) == ([], SEARCHED_BYTES // bodies.INFLATED_MAX, True)


def test_a_text_is_found_in_keys_tag_properties_id_and_body() -> None:
    one = message(body=b'{"Order": 17}', tag="Paid", keys=["k-1"], message_id="ID9")
    one.user_properties["region"] = "eu"
    for text in ("order", "paid", "K-1", "id9", "region=EU", ""):
        assert contains(one, text)[0], text
    assert contains(one, "us") == (False, len(one.body))


@pytest.mark.parametrize(
    ("body", "forms"),
    [
        (b'{"a":1}', ["json", "text", "hex"]),
        (b"{broken", ["text", "hex"]),
        (b"[" * 50_000, ["text", "hex"]),
        ("é\n".encode(), ["text", "hex"]),
        (b"a\x00b", ["hex"]),
        (b"\xff\xfe", ["hex"]),
        (b"", ["text", "hex"]),
    ],
)
def test_a_body_is_shown_in_the_forms_that_it_has(body: bytes, forms: list[str]) -> None:
    assert bodies.forms(body) == forms
    assert bodies.shown(body, "").kind == forms[0]
    assert bodies.shown(body, "odd").kind == forms[0]
    assert bodies.shown(body, "hex").kind == "hex"


@given(st.binary(max_size=300))
def test_any_body_has_a_preview_of_one_line_and_a_dump_of_all_bytes(body: bytes) -> None:
    assert "\n" not in bodies.preview(message(body=body))
    dumped = [line[10:57] for line in bodies.hex_dump(body).splitlines()]
    assert bytes.fromhex(" ".join(dumped)) == body


def test_large_bodies_are_cut() -> None:
    assert bodies.shown(b"x" * (1 << 20), "text").is_cut
    assert bodies.shown(b"\x00" * (1 << 20), "hex").is_cut
    assert len(bodies.preview(message(body=("é" * 5_000).encode()))) <= 120


def test_a_large_json_body_is_shown_up_to_the_limit_and_escaped_surrogates_stay_escaped() -> None:
    deep = b"[" * 900 + b"0," * 20_000 + b"0" + b"]" * 900
    began_s = time.thread_time()
    found = bodies.shown(deep, "json")
    assert (found.kind, len(found.text), found.is_cut) == ("json", bodies.SHOWN_MAX, True)
    assert time.thread_time() - began_s < 0.2, "all of its text has 40 MB"
    assert "\\ud800" in bodies.shown(b'["\\ud800"]', "json").text.encode().decode()


@pytest.mark.parametrize("pack", [zlib.compress, gzip.compress])
def test_compressed_bodies_are_unpacked_with_a_limit(pack: object) -> None:
    packed = pack(b"x" * (8 << 20))  # type: ignore[operator]
    assert len(bodies.plain(message(body=packed, body_encoding=v2.GZIP))) == 4 << 20
    assert bodies.preview(message(body=packed, body_encoding=v2.GZIP)) == "x" * 119 + "…"
    assert bodies.plain(message(body=b"damaged", body_encoding=v2.GZIP)) == b"damaged"


def test_an_export_has_whole_messages_and_no_formulas() -> None:
    first = message(1, 2, b"=1+1", tag="+t", keys=["a", "b"])
    first.user_properties["p"] = "v"
    documents = [bodies.document(one, "broker-a") for one in (first, message(2, 3, b"\xff"))]
    assert json.loads(bodies.as_json(documents))[0]["body"] == "=1+1"
    rows = list(csv.DictReader(io.StringIO(bodies.as_csv(documents))))
    assert (rows[0]["body"], rows[0]["tag"], rows[0]["keys"]) == ("'=1+1", "'+t", "a b")
    assert (rows[1]["body"], rows[1]["body_base64"]) == ("", "/w==")


def test_a_copy_has_the_content_and_what_its_topic_requires() -> None:
    one = message(body=b"b", tag="t", keys=["k"], message_group="g")
    one.user_properties.update({"mine": "1", "__SHARDINGKEY": "g"})
    plain = copy_of(one, "orders", "normal")
    assert (plain.body, plain.tag, plain.keys) == (b"b", "t", ("k",))
    assert (plain.properties, plain.group, plain.delay_ms) == ({"mine": "1"}, None, None)
    assert copy_of(one, "orders", "fifo").group == "g"
    assert copy_of(one, "orders", "delay").delay_ms == 0


def test_a_dead_letter_tells_its_origin_and_reason() -> None:
    one = message(5, delivery_attempt=3)
    one.system_properties.dead_letter_queue.topic = "orders"
    assert letter_row((QUEUE, one))["reason"] == "–"
    one.user_properties["error"] = "refused"
    row = letter_row((QUEUE, one))
    assert (row["origin"], row["reason"], row["attempts"]) == ("orders", "refused", 3)
    assert places_of("g", [row["place"]] * 2) == [(Queue("%DLQ%g", "broker-a", 3), 5)]


@pytest.mark.parametrize(
    "texts", [[], ["1"], ["a:b:c"], ["a:1:-1"], [f"b:0:{n}" for n in range(REDRIVEN_MAX + 1)]]
)
def test_a_bad_or_large_selection_is_refused(texts: list[str]) -> None:
    with pytest.raises(CliError):
        places_of("g", texts)


def test_columns_begin_with_the_first_name_or_the_largest_number() -> None:
    rows = [("a", 1), ("b", 1), ("c", 5)]
    columns = {"name": lambda row: row[0], "lag": lambda row: row[1]}
    assert [name for name, _ in sorted_by(rows, columns, "odd")] == ["a", "b", "c"]
    assert [name for name, _ in sorted_by(rows, columns, "-name")] == ["c", "b", "a"]
    assert [name for name, _ in sorted_by(rows, columns, "lag")] == ["c", "a", "b"]
    assert [name for name, _ in sorted_by(rows, columns, "-lag")] == ["a", "b", "c"]


def test_rates_are_differences_of_counts_and_a_step_back_is_a_gap() -> None:
    rates = Rates()
    assert rates.add("orders", 10_000, 100) == [[], []]
    assert rates.add("orders", 10_500, 105) == [[], []], "another viewer within the second"
    assert rates.add("orders", 15_000, 150) == [[15.0], [10.0]]
    assert rates.add("orders", 20_000, 0) == [[15.0, 20.0], [10.0, None]]
    for n in range(OBJECTS_MAX):
        rates.add(f"other-{n}", 20_000, 0)
    assert rates.add("orders", 25_000, 9) == [[], []], "the oldest is forgotten"


def test_the_fate_of_a_copy_has_a_time_if_a_trace_tells_it() -> None:
    assert fate_of(PAST, "billing") == "consumed by billing"
    told = fate_of("consumed after a retry", "billing", 1_700_000_000_123)
    assert re.sub("<[^>]*>", "", told) == (
        "consumed by billing at 2023-11-14 22:13:20.123 after a retry"
    )
    assert fate_of("waiting", "billing") == "still waiting"


def test_old_transactions_and_absent_consumers_are_told() -> None:
    assert old_transactions(3, 599_000) == []
    (alarm,) = old_transactions(3, 1_200_000)
    assert alarm.text == "3 transactions without an outcome, the oldest for 20 min."
    group = Facts("billing", lag=1, absent_ms=720_000)
    (alarm,) = alarms_of([group])
    assert alarm.text == (
        "Group billing has no consumer: 1 message waits. Its last client was seen 12 min ago."
    )


def test_groups_of_several_broker_groups_are_summed() -> None:
    def page(lag: int, clients: int, *, enabled: bool) -> v1.ListGroupsResponse:
        answer = v1.ListGroupsResponse()
        for name, factor in (("a", 1), ("b", 2)):
            answer.groups.append(v1.GroupConfig(name=name, consume_enable=enabled))
            answer.progress.append(v1.GroupProgress(lag=lag * factor, clients=clients))
        return answer

    found = [("x", [page(1, 3, enabled=True)]), ("y", [page(5, 2, enabled=False)])]
    rows = sorted_by(
        group_rows(found), {"name": lambda row: row.name, "lag": lambda row: row.lag}, "lag"
    )
    assert [(row.name, row.lag, row.clients, row.paused) for row in rows] == [
        ("b", 12, 3, True),
        ("a", 6, 3, True),
    ]


def test_a_client_of_several_broker_groups_is_listed_once() -> None:
    def answer(seen: int) -> v1.DescribeGroupResponse:
        client = v1.GroupClient(client_id="c", last_seen_ms_ago=seen)
        return v1.DescribeGroupResponse(clients=[client])

    assert [one.last_seen_ms_ago for one in clients_of([answer(9), answer(4)])] == [4]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("1970-01-01T00:00:01", 1_000),
        ("1970-01-01T01:00:01+01:00", 1_000),
        ("-1m", 40_000),
        ("20001122", 20_001_122),
    ],
)
def test_times_are_utc_without_a_zone(text: str, expected: int) -> None:
    assert moment_ms(text, 100_000) == expected


def test_a_bad_time_is_refused() -> None:
    with pytest.raises(CliError, match="not a time"):
        moment_ms("yesterday", 0)


def test_a_client_is_one_row_with_all_its_groups() -> None:
    def status(name: str, seen: int, *groups: str, kind: str = "") -> v1.ClientStatus:
        client = v1.GroupClient(client_id=name, last_seen_ms_ago=seen, peer="10.0.0.1:1")
        return v1.ClientStatus(client=client, groups=groups, kind=kind)

    rows = client_rows(
        [status("b", 9, "g1"), status("a", 1, "g1"), status("b", 2, "g1", "g2", kind="producer")]
    )
    assert [(row.client.client_id, row.groups) for row in rows] == [
        ("a", ["g1"]),
        ("b", ["g1", "g2"]),
    ]
    assert (rows[1].client.last_seen_ms_ago, rows[1].kind) == (2, "producer")
    assert "10.0.0.1" in rows[1].text()
