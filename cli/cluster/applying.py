"""What must change so that broker groups have the objects of a document of definitions.

Each group is compared with the document on its own, so a repetition finishes what failed. Objects
that the document lacks stay, or are deleted with `prune`; users of type Super are never deleted,
because a document without them would lock out the operator.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ...auth.quota import LIMITS
from ...operations.broker_groups import BrokerGroups
from ...operations.errors import CliError
from ...proto import paths, v1
from .definitions import Definition
from .reconcile import KINDS, QUOTAS, USERS, Call, Difference, Kind, changed


@dataclass(frozen=True, slots=True)
class Wanted:
    """A document, and what may be deleted."""

    definitions: Mapping[str, Sequence[Definition]]
    #: Delete objects that a section of the document lacks.
    prune: bool = False
    #: Delete topics and groups even if they hold messages.
    accept_loss: bool = False
    force: bool = False


def changes(
    groups: BrokerGroups, wanted: Wanted
) -> tuple[list[Difference], list[tuple[str, CliError]]]:
    """Return the changes, and the groups that cannot be read with their errors."""
    found: list[Difference] = []
    unread: dict[str, CliError] = {}
    for kind in KINDS:
        if kind.title not in wanted.definitions:
            continue
        for one in kind.read(groups):
            if one.error is not None:
                unread.setdefault(one.broker, one.error)
            elif one.answer is not None:
                present = {kind.key(each): each for each in one.answer}
                found += _changes(kind, one.broker, present, wanted)
    return found, list(unread.items())


def _changes(
    kind: Kind, broker: str, present: Mapping[str, Any], wanted: Wanted
) -> Iterator[Difference]:
    definitions = wanted.definitions[kind.title]
    supers = {
        name for name, config in present.items() if kind is USERS and _is_active_super(config)
    }
    for each in definitions:
        known = present.get(each.name)
        config = each.over(known)
        refused = _refusal(kind, config, supers)
        if known is None:
            calls = tuple(_creation(kind, each, config))
            yield Difference(broker, kind.name, each.name, "create", "", calls, refused)
        elif text := changed(kind.facts(known), kind.facts(config)):
            calls = tuple(kind.calls(config, known))
            yield Difference(broker, kind.name, each.name, "change", text, calls, refused)
    kept = {each.name for each in definitions}
    for name, config in present.items() if wanted.prune else ():
        if name not in kept and not (kind is USERS and config.is_super):
            calls = (_deletion(kind, name, wanted),)
            yield Difference(broker, kind.name, name, "delete", "", calls)


def _refusal(kind: Kind, config: Any, supers: set[str]) -> str:
    """Return why a broker refuses this user or quota; enter the user among those that rule."""
    if kind is USERS:
        if not _is_active_super(config) and supers == {config.name}:
            return "it is the last enabled user of type super: create another one first"
        (supers.add if _is_active_super(config) else supers.discard)(config.name)
    elif kind is QUOTAS and not any(getattr(config, limit) for limit in LIMITS):
        return "a quota needs a limit above 0"
    return ""


def _is_active_super(user: v1.UserConfig) -> bool:
    return user.is_super and not user.disabled


def _creation(kind: Kind, definition: Definition, config: Any) -> Iterator[Call]:
    """Yield the calls that create an object; none for a user without a secret key."""
    if kind is not USERS:
        yield from kind.calls(config, None)
    elif definition.secret:
        user = v1.PutUserRequest(
            name=config.name,
            secret=definition.secret,
            is_super=config.is_super,
            enabled=not config.disabled,
            must_be_new=True,
        )
        yield paths.PUT_USER, user, v1.UserResponse
        for policy in config.policies:
            put = v1.PutPolicyRequest(user=config.name, policy=policy)
            yield paths.PUT_POLICY, put, v1.UserResponse


def _deletion(kind: Kind, name: str, wanted: Wanted) -> Call:
    if kind.title == "topics":
        topic = v1.DeleteTopicRequest(name=name, accept_loss=wanted.accept_loss)
        return paths.DELETE_TOPIC, topic, v1.DeleteTopicResponse
    if kind.title == "groups":
        group = v1.DeleteGroupRequest(name=name, accept_loss=wanted.accept_loss, force=wanted.force)
        return paths.DELETE_GROUP, group, v1.DeleteGroupResponse
    if kind is USERS:
        return paths.DELETE_USER, v1.DeleteUserRequest(name=name), v1.UserResponse
    return paths.DELETE_QUOTA, v1.DeleteQuotaRequest(subject=name), v1.QuotaResponse
