"""Filters: tags with literal comparison, SQL92 with three-valued logic, errors.

Rows of the feature table from "Tag filter" to "SQL with pop/gRPC", and "Inconsistent subscriptions"
(docs/formats/broker-semantics.md, sections 4 and 8.6).
"""

from __future__ import annotations

import pytest

from cometmq.proto import v2
from cometmq.tests.features.client import Client

pytestmark = pytest.mark.asyncio(loop_scope="module")

PEOPLE: list[dict[str, str]] = [
    {"name": "ada", "age": "36", "price": "9.5"},
    {"name": "bob", "age": "7", "price": "10"},
    {"name": "cy", "age": "abc"},
    {"name": "dee"},
]


async def selected(client: Client, topic: str, expression: str) -> str:
    """Return the names of the messages that an expression matches, for a new group."""
    group = client.name(f"g{sum(expression.encode())}-{len(expression)}")
    answer = await client.now(topic, group, sql=expression)
    assert answer.code in (v2.OK, v2.MESSAGE_NOT_FOUND), answer
    return " ".join(message.user_properties["name"] for message in answer.messages)


async def people(client: Client) -> str:
    """Create a topic with the four messages."""
    topic = await client.topic()
    for properties in PEOPLE:
        await client.send(topic, properties=properties, tag="person")
    return topic


@pytest.mark.feature("Tag filter")
async def test_tags_are_compared_literally(client: Client) -> None:
    topic, group = await client.topic(), client.name("group")
    for tag in ("BB", "Aa", "aa", "AaBB"):  # the hashes of Aa and BB are equal
        await client.send(topic, tag, tag=tag)
    await client.send(topic, "none")
    got = await client.one(topic, group, tag="Aa")
    assert got.body == b"Aa"
    await client.ack(topic, group, [got])
    await client.quiet(topic, group, tag="Aa")
    # Messages that do not match are consumed for the group, whatever its later filter.
    await client.quiet(topic, group, tag="*")


@pytest.mark.feature("Tag expression")
async def test_tag_expressions_select_messages(client: Client) -> None:
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
async def test_sql_expressions_select_messages(client: Client) -> None:
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
async def test_conditions_on_missing_properties_do_not_match(client: Client) -> None:
    topic = await people(client)
    for expression, names in {
        "missing = 1": "",
        "price > 0": "ada bob",
        "NOT (price > 0)": "",
        "price > 0 OR name = 'dee'": "ada bob dee",
        "missing IS NULL AND name = 'cy'": "cy",
    }.items():
        assert await selected(client, topic, expression) == names, expression


@pytest.mark.feature("SQL numeric vs text")
async def test_numeric_properties_are_compared_as_numbers(client: Client) -> None:
    """A decimal property is a number, unlike in the reference; a text is not."""
    topic = await people(client)
    for expression, names in {
        "price < 10": "ada",
        "price >= 9.5": "ada bob",
        "age > 5": "ada bob",
        "age > 5 AND name = 'cy'": "",
    }.items():
        assert await selected(client, topic, expression) == names, expression


@pytest.mark.feature("SQL trailing text")
async def test_an_invalid_expression_is_refused_with_the_position(
    client: Client,
) -> None:
    """The reference ignores what follows an expression, and returns an internal error for the
    rest.
    """
    topic = await people(client)
    for expression in ("name = 'ada' garbage", "name = ", "", "name LIKE 'a%'", "age + 1 = 8", "1"):
        answer = await client.receive(topic, client.name("group"), sql=expression)
        assert answer.code == v2.ILLEGAL_FILTER_EXPRESSION, expression
        assert not expression or any(c.isdigit() for c in answer.text), answer.text


@pytest.mark.feature("Inconsistent subscriptions")
async def test_two_filters_in_one_group_consume_each_others_messages(client: Client) -> None:
    topic, group = await client.topic(), client.name("group")
    for tag in ("a", "b"):
        await client.send(topic, tag, tag=tag)
    assert (await client.one(topic, group, tag="b")).body == b"b"
    # The other client of the group is not refused, but its message has been consumed.
    await client.quiet(topic, group, tag="a")


@pytest.mark.feature("SQL precedence")
async def test_operator_precedence(client: Client) -> None:
    topic = await people(client)
    for expression, names in {
        "NOT name = 'bob'": "",  # (NOT name) = 'bob': a boolean is not a text
        "NOT (name = 'bob')": "ada cy dee",
        "name = 'dee' OR name = 'ada' AND age = 7": "dee",
        "(name = 'dee' OR name = 'bob') AND age = 7": "bob",
        "age = 7 = TRUE": "bob",
    }.items():
        assert await selected(client, topic, expression) == names, expression
