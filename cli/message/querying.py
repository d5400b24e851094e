"""Queries by key, tag or id, shown as rows or JSON."""

from typing import Any

import click
from google.protobuf.message import DecodeError

from ...operations.broker_groups import BrokerGroups, answers, group_names
from ...operations.connection import TIMEOUT_S, Connection
from ...operations.errors import CliError, Exit
from ...operations.message_document import message_document
from ...operations.pulling import pull, queue_of
from ...proto import paths, v1, v2
from ..cluster.broker_groups import broker_groups, check_topic, note_failures
from ..output import show_document, show_rows


def query_messages(endpoint: str, request: v1.QueryMessagesRequest, output: str) -> None:
    """Query all broker groups and print. Raises CliError, with NOT_FOUND if no message matches."""
    with broker_groups(endpoint) as groups:
        outcomes = groups.each(paths.QUERY_MESSAGES, request, v1.QueryMessagesResponse)
        found_in = answers(outcomes)
        if request.topic and not any(answer.messages for _, answer in found_in):
            check_topic(groups, request.topic)
    documents = []
    for name, answer in found_in:
        at = {"broker": name} if name else {}
        documents += [{**_document(found), **at} for found in answer.messages]
        where = f"{name}: " if name else ""
        if answer.left_out:
            click.echo(f"cometmq: {where}older messages are omitted: the answer is full.", err=True)
        if answer.index_behind and not request.message_id:
            click.echo(
                f"cometmq: {where}the index is {answer.index_behind} bytes behind; messages may be "
                "missing.",
                err=True,
            )
    if len(outcomes) > 1:  # each group's newest messages, oldest first
        documents.sort(key=lambda document: document.get("stored_ms", 0))
        documents = documents[-request.count :]
    if output == "json":
        show_document(documents)
    elif documents:
        show_rows([_row(document) for document in documents], output, empty="")
    note_failures(outcomes)
    if not documents:
        raise CliError(
            "No message found. What is stored: cometmq message tail TOPIC --from beginning",
            Exit.NOT_FOUND,
        )


def message_at(
    connection: Connection, topic: str, broker: str, queue_id: int, offset: int
) -> v2.Message:
    """Return the message at an offset of a queue. Raises CliError."""
    groups = BrokerGroups(connection, (broker,) if broker else group_names(connection))
    request = v1.DescribeTopicRequest(name=topic)
    found_in = answers(groups.each(paths.DESCRIBE_TOPIC, request, v1.DescribeTopicResponse))
    shown = f" `cometmq topic describe {topic}` shows queues and offsets."
    queues = [each for _, answer in found_in for each in answer.queues]
    names = [each.broker for each in queues if each.queue_id == queue_id]
    if not names:
        raise CliError(f"Topic {topic} has no queue {queue_id}.{shown}", Exit.NOT_FOUND)
    queue = queue_of(topic, names[0], queue_id)
    found = pull(connection, queue, offset, count=1, timeout_s=TIMEOUT_S).messages
    if not found or found[0].system_properties.queue_offset != offset:
        raise CliError(
            f"Queue {queue_id} of {topic} has no message {offset}.{shown}", Exit.NOT_FOUND
        )
    return found[0]


def _document(found: v1.FoundMessage) -> dict[str, Any]:
    location = {
        "offset_id": found.offset_id,
        "physical_offset": found.physical_offset,
        "size": found.size,
    }
    try:
        message = v2.Message.FromString(found.message)
    except DecodeError:  # properties that are not text
        return location
    return message_document(message) | location


def _row(document: dict[str, Any]) -> dict[str, Any]:
    names = ("topic", "queue", "offset", "message_id", "tag", "keys", "stored_ms", "offset_id")
    at = {"broker": document["broker"]} if "broker" in document else {}
    body = document.get("body", "(not text)")
    return {name: document.get(name, "") for name in names} | at | {"body": body}
