"""Queries by key, tag or id, shown as rows or JSON."""

from typing import Any

import click
from google.protobuf.message import DecodeError

from ...proto import paths, v1, v2
from ..cluster.broker_groups import answers, broker_groups, note_failures
from ..errors import CliError, Exit
from ..output import show_document, show_rows, timed
from .tailing import message_document

_BODY_CHARS_MAX = 60


def query_messages(endpoint: str, request: v1.QueryMessagesRequest, output: str) -> None:
    """Query all broker groups and print. Raises CliError, with NOT_FOUND if no message matches."""
    with broker_groups(endpoint) as groups:
        outcomes = groups.each(paths.QUERY_MESSAGES, request, v1.QueryMessagesResponse)
    documents = []
    for name, answer in answers(outcomes):
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
        show_rows([timed(_row(document)) for document in documents], output, empty="")
    note_failures(outcomes)
    if not documents:
        raise CliError("No message found.", Exit.NOT_FOUND)


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
    body = str(document.get("body", "(not text)"))
    if not body.isprintable():
        body = body.encode("unicode_escape").decode("ascii")
    if len(body) > _BODY_CHARS_MAX:
        body = body[: _BODY_CHARS_MAX - 3] + "..."
    names = ("topic", "queue", "offset", "message_id", "tag", "keys", "stored_ms", "offset_id")
    at = {"broker": document["broker"]} if "broker" in document else {}
    return {name: document.get(name, "") for name in names} | at | {"body": body}
