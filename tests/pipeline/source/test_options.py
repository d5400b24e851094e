"""Options of the source: validated on the driver, with sentences that name the remedy."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from cometmq.pipeline.errors import OptionError
from cometmq.pipeline.schema import COLUMNS, MESSAGE_SCHEMA
from cometmq.pipeline.source.marks import Mark
from cometmq.pipeline.source.offsets import PLAN, Checkpoint, parse_offsets
from cometmq.pipeline.source.options import OPTIONS, parse


def options(**given: str) -> Any:
    return parse({"path": "/store", **given})


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ({"subscribd": "t"}, "Did you mean subscribe?"),
        ({"startingOffset": "earliest"}, "Did you mean startingOffsets?"),
        ({"maxOffsetPerTrigger": "1"}, "Did you mean maxOffsetsPerTrigger?"),
        ({"zzz": "1"}, "There is no option 'zzz'"),
        ({"subscribe": "a", "subscribePattern": "b"}, "exclude each other"),
        ({"subscribePattern": "("}, "not a valid regular expression"),
        ({"assign": "[1]"}, "assign must be JSON like"),
        ({"onCorrupt": "ignore"}, "onCorrupt must be fail, skip or permissive, not 'ignore'"),
        ({"properties": "json"}, "properties must be map, string or none"),
        ({"columns": "topic,bodi"}, "Did you mean body?"),
        ({"failOnDataLoss": "yes"}, "true or false"),
        ({"splitBytes": "-1"}, "positive whole number"),
        ({"startingTimestamp": "-1"}, "whole number of at least 0"),
        ({"maxTriggerDelay": "soon"}, "a time like 500ms"),
        ({"startingOffsets": "first"}, "startingOffsets is JSON like"),
        ({"startingOffsets": '{"t":{"0":-3}}'}, "invalid offset -3"),
        ({"startingOffsets": '{"t":{"0":1.5}}'}, "startingOffsets is JSON like"),
        ({"endingOffsets": "earliest"}, "endingOffsets cannot be earliest"),
        ({"startingOffsets": "latest", "startingTimestamp": "1"}, "exclude each other"),
        ({"endpoints": "h:1"}, "either `path`"),
        ({"consumerGroup": "g"}, "consumerGroup needs `endpoints`"),
        ({"brokerName": "a,b"}, "brokerName needs a different name for each of 1"),
        ({"path": "/a,/a"}, "names one directory twice"),
        ({"path": "/no/such/*"}, "No directory matches"),
        ({"path": ""}, "either `path`"),
        ({"path": "", "endpoints": "h:1", "accessKey": "k"}, "Set both accessKey and secretKey"),
        ({"subExpression": " || "}, "subExpression must be tags"),
    ],
)
def test_an_invalid_option_raises_a_sentence_with_the_remedy(
    given: dict[str, str], sentence: str
) -> None:
    with pytest.raises(OptionError) as caught:
        options(**given)
    assert sentence in str(caught.value)


def test_option_keys_are_case_insensitive() -> None:
    found = parse({"PATH": "/a,/b", "maxoffsetspertrigger": "7", "SUBSCRIBE": "x, y"})
    assert found.paths == ("/a", "/b")
    assert found.max_rows == 7
    assert found.topics.topics == frozenset({"x", "y"})


def test_paths_are_made_absolute_and_globs_are_expanded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Executors have another working directory."""
    for name in ("b1", "b2"):
        (tmp_path / name).mkdir()
    monkeypatch.chdir(tmp_path)
    assert parse({"path": "b1"}).paths == (str(tmp_path / "b1"),)
    assert parse({"path": "b*"}).paths == (str(tmp_path / "b1"), str(tmp_path / "b2"))
    assert parse({"path": f"file://{tmp_path}/b1"}).paths == (str(tmp_path / "b1"),)


def test_system_topics_are_read_from_files_and_not_over_the_wire() -> None:
    assert options().topics.matches("%DLQ%g")
    assert not options(subscribePattern=".*").topics.matches("%DLQ%g")
    assert options(subscribe="%DLQ%g").topics.matches("%DLQ%g")
    wire = parse({"endpoints": "h:1"}).topics
    assert not wire.matches("rmq_sys_REVIVE_LOG_c")
    assert wire.matches("orders")
    assert parse({"endpoints": "h:1", "includeSystemTopics": "true"}).topics.matches("%RETRY%g")


def test_offsets_round_trip_through_json() -> None:
    text = '{"b":{"t":{"0":5,"1":-1}},"$plan":{"splitBytes":9}}'
    offsets = parse_offsets("x", text, special=True)
    assert offsets == {("b", "t", 0): 5, ("b", "t", 1): -1}
    assert parse_offsets("x", '{"t":{"0":5}}', special=True) == {("", "t", 0): 5}
    known = Checkpoint({("b", "t", 0): 5}, 9)
    assert known.to_json() == {"b": {"t": {"0": 5}}, PLAN: {"splitBytes": 9}}
    marked = replace(known, marks={"b": Mark(7, 8, 9)}, begins={("b", "t", 0): 2}, lost=3)
    for one in (known, marked):
        document = json.loads(json.dumps(one.to_json()))
        assert Checkpoint.of(document) == one
        assert parse_offsets("x", json.dumps(document), special=True) == {("b", "t", 0): 5}


def test_every_option_has_a_help_text_and_secrets_are_hidden() -> None:
    assert all(OPTIONS.values())
    found = parse({"endpoints": "h:1", "accessKey": "k", "secretKey": "hidden"})
    assert "hidden" not in repr(found)


def test_the_row_schema_is_stable() -> None:
    assert MESSAGE_SCHEMA.startswith(
        "topic string, queueId int, queueOffset bigint, brokerName string"
    )
    assert len(COLUMNS) == 20


def test_the_manual_has_every_option() -> None:
    text = (Path(__file__).parents[3] / "docs" / "pipeline.md").read_text()
    table = text[text.index("| option | default |") : text.index("**Filters and columns.**")]
    assert [name for name in OPTIONS if f"`{name}`" not in table] == []
