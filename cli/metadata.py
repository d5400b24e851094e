"""What `cometmq topic` and `cometmq group` share: options of settings, and their output."""

from collections.abc import Callable

import click
from click.decorators import FC

from ..operations.topic_values import PERMISSIONS
from ..proto import v1

#: `--perm` of a topic.
PERMISSION_METAVAR = "none|read|write|rw"
#: The attribute in which RocketMQ keeps a topic's type; here it is a field of its own.
MESSAGE_TYPE_ATTRIBUTE = "message.type"


def with_options(*options: Callable[[FC], FC]) -> Callable[[FC], FC]:
    """Return a decorator that adds these options, in this order."""

    def add(command: FC) -> FC:
        for option in reversed(options):
            command = option(command)
        return command

    return add


def attribute_option(example: str) -> Callable[[FC], FC]:
    """Return the option `--attribute`, with `example` in its help."""
    return click.option(
        "--attribute",
        "attributes",
        multiple=True,
        metavar="+KEY=VALUE|-KEY",
        help=f"Set or remove an attribute, for example {example}; repeatable.",
    )


def change_verb(answer: v1.CreateTopicResponse | v1.CreateGroupResponse, *, dry_run: bool) -> str:
    """Return what was done: Created, Unchanged, Changed or, in a dry run, Would change."""
    if answer.created:
        return "Created"
    if not answer.altered:
        return "Unchanged"
    return "Would change" if dry_run else "Changed"


def permission(text: str) -> int:
    """Parse `--perm`: `none`, `read`, `write`, `rw`, or RocketMQ's number."""
    word = text.lower()
    if word in PERMISSIONS:
        return PERMISSIONS[word]
    if word in {str(number) for number in PERMISSIONS.values()}:
        return int(word)
    raise click.BadParameter(f"'{text}' is not one of {', '.join(PERMISSIONS)}, 0, 2, 4, 6.")
