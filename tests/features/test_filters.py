"""Filters: tags with their exact comparison, SQL92 with three-valued logic, and their errors.

Rows of the feature table from "Tag filter" to "SQL with pop/gRPC", and "Inconsistent subscriptions"
(broker semantics, section 4 and 8.6).
"""

from __future__ import annotations

import pytest

from cometmq.proto import v2
from cometmq.tests.features.client import Client

PEOPLE: list[dict[str, str]] = [
    {"name": "ada", "age": "36", "price": "9.5"},
    {"name": "bob", "age": "7", "price": "10"},
    {"name": "cy", "age": "abc"},
    {"name": "dee"},
]


async def selected(client: Client, topic: str, expression: str) -> str:
    """The names of the messages that an expression chooses, for a group of its own."""
    group = client.name(f"g{sum(expression.encode())}-{len(expression)}")
    answer = await client.now(topic, group, sql=expression)
    assert answer.code in (v2.OK, v2.MESSAGE_NOT_FOUND), answer
    return " ".join(message.user_properties["name"] for message in answer.messages)


async def people(client: Client) -> str:
    """A topic with the four."""
    topic = await client.topic()
    for properties in PEOPLE:
        await client.send(topic, properties=properties, tag="person")
    return topic


@pytest.mark.feature("Tag filter")
async def test_tags_are_compared_exactly(client: Client) -> None:
    topic, group = await client.topic(), client.name("group")
    for tag in ("BB", "Aa", "aa", "AaBB"):  # the hashes of Aa and BB are equal
        await client.send(topic, tag, tag=tag)
    await client.send(topic, "none")
    got = await client.one(topic, group, tag="Aa")
    assert got.body == b"Aa"
    await client.ack(topic, group, [got])
    await client.quiet(topic, group, tag="Aa")
    # What did not match counts as consumed for the group, whatever it asks for later.
    await client.quiet(topic, group, tag="*")


@pytest.mark.feature("Tag expression")
async def test_tag_expressions(client: Client) -> None:
    topic = await client.topic()
    for tag in ("a", "b", "c"):
        await client.send(topic, tag, tag=tag)
    for number, (expression, bodies) in enumerate(
        {
            "a || b": {b"a", b"b"},
            "a||c||": {b"a", b"c"},
            "*": {b"a", b"b", b"c"},
            "": {b"a", b"b", b"c"},
            "b": {b"b"},
        }.items()
    ):
        got = await client.receive(topic, client.name(f"group{number}"), tag=expression)
        assert set(got.bodies) == bodies, expression
    refused = await client.receive(topic, client.name("group"), tag="||")
    assert refused.code == v2.ILLEGAL_FILTER_EXPRESSION


@pytest.mark.feature("SQL with pop/gRPC")
async def test_expressions_choose_what_a_group_receives(client: Client) -> None:
    topic = await people(client)
    for expression, names in {
        "name = 'ada'": "ada",
        "name <> 'ada' AND age = 7": "bob",
        "name IN ('ada', 'dee')": "ada dee",
        "age BETWEEN 5 AND 40": "ada bob",
        "price IS NULL": "cy dee",
        "age IS NOT NULL AND NOT (name = 'bob')": "ada cy",
        "name CONTAINS 'd'": "ada dee",
        "name STARTSWITH 'a' OR name ENDSWITH 'y'": "ada cy",
        "TAGS = 'person' AND name = 'dee'": "dee",
        "name = 'bob' -- a comment": "bob",
    }.items():
        assert await selected(client, topic, expression) == names, expression


@pytest.mark.feature("SQL filter missing property")
async def test_what_is_not_there_is_unknown_and_not_delivered(client: Client) -> None:
    topic = await people(client)
    for expression, names in {
        "nobody = 1": "",
        "price > 0": "ada bob",
        "NOT (price > 0)": "",
        "price > 0 OR name = 'dee'": "ada bob dee",
        "nobody IS NULL AND name = 'cy'": "cy",
    }.items():
        assert await selected(client, topic, expression) == names, expression


@pytest.mark.feature("SQL numeric vs text")
async def test_numbers_are_compared_as_numbers(client: Client) -> None:
    """A decimal property is a number, too, unlike with the reference; a text is none."""
    topic = await people(client)
    for expression, names in {
        "price < 10": "ada",
        "price >= 9.5": "ada bob",
        "age > 5": "ada bob",
        "age > 5 AND name = 'cy'": "",
    }.items():
        assert await selected(client, topic, expression) == names, expression


@pytest.mark.feature("SQL trailing text")
async def test_an_expression_that_cannot_be_parsed_is_refused_with_its_place(
    client: Client,
) -> None:
    """The reference ignores what follows an expression, and calls the rest an internal error."""
    topic = await people(client)
    for expression in ("name = 'ada' garbage", "name = ", "", "name LIKE 'a%'", "age + 1 = 8", "1"):
        answer = await client.receive(topic, client.name("group"), sql=expression)
        assert answer.code == v2.ILLEGAL_FILTER_EXPRESSION, expression
        assert not expression or any(c.isdigit() for c in answer.text), answer.text


@pytest.mark.feature("Inconsistent subscriptions")
async def test_two_filters_in_one_group_take_messages_from_each_other(client: Client) -> None:
    topic, group = await client.topic(), client.name("group")
    for tag in ("a", "b"):
        await client.send(topic, tag, tag=tag)
    assert (await client.one(topic, group, tag="b")).body == b"b"
    # The other client of the group is not refused, and the message that it wants is gone.
    await client.quiet(topic, group, tag="a")


@pytest.mark.feature("SQL precedence")
async def test_what_binds_tighter(client: Client) -> None:
    topic = await people(client)
    for expression, names in {
        "NOT name = 'bob'": "",  # (NOT name) = 'bob': a truth value is no text
        "NOT (name = 'bob')": "ada cy dee",
        "name = 'dee' OR name = 'ada' AND age = 7": "dee",
        "(name = 'dee' OR name = 'bob') AND age = 7": "bob",
        "age = 7 = TRUE": "bob",
    }.items():
        assert await selected(client, topic, expression) == names, expression
