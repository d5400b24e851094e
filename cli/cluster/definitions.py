"""Definitions of a cluster as a document: topics, groups, users, policies and quotas. Pure.

    version: 1
    topics:
      - name: orders
        type: fifo
        write_queues: 8
    groups:
      - name: billing
        retry:
          delays: [1s, 5s, 1m]
    users:
      - name: orders-service
        policies:
          - resource: Topic:orders
            actions: [Pub]
    quotas:
      - subject: User:orders-service
        messages: 1000

A field that is left out keeps the value of an existing object, and gets the default of a new one.
Secret keys cannot be read from a cluster: an exported document has none. `secret` of a user counts
only when the user is created.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ...auth.model import (
    POLICIES_MAX,
    SOURCES_MAX,
    Action,
    ResourcePattern,
    action_names,
    check_secret,
    check_user_name,
    parse_actions,
    parse_source,
)
from ...auth.quota import LIMITS, parse_subject
from ...operations.times import duration_text
from ...operations.topic_values import PERMISSIONS, TOPIC_TYPE_NAMES, TOPIC_TYPES
from ...proto import v1
from ..metadata import MESSAGE_TYPE_ATTRIBUTE
from ..times import duration_ms

VERSION = 1
#: Objects of one kind: more than a broker's tables are used with.
OBJECTS_MAX = 100_000
_QUEUES_MAX = 1024
_ATTEMPTS_MAX = 1_000
_LIMIT_MAX = 2**63 - 1
_PERM_BITS = 6
_DECISIONS = {"allow": True, "deny": False}
_USER_TYPES = {"normal": False, "super": True}


@dataclass(frozen=True, slots=True)
class _Field:
    """One field: how it is read from a configuration message, and written to one."""

    read: Callable[[Any], Any]
    #: Raises ValueError with the rule that the value breaks.
    write: Callable[[Any, Any], None]


@dataclass(frozen=True, slots=True)
class Section:
    """The objects of one kind in a document."""

    #: The name of the list in a document.
    title: str
    #: The field that names an object, and its attribute of the message.
    key: str
    #: Return the message of an object with the defaults of a new one.
    new: Callable[[str], Any]
    fields: Mapping[str, _Field]
    #: Raises ValueError for a name that brokers refuse; they check names of topics and groups.
    check_name: Callable[[str], object] = lambda _name: None


@dataclass(frozen=True, slots=True)
class Definition:
    """One object of a document."""

    name: str
    section: Section
    values: Mapping[str, Any]
    #: Of a user: the secret key that it gets when it is created.
    secret: str = ""

    def over(self, known: Any | None) -> Any:
        """Return the object with the fields of the document; the others are those of `known`."""
        config = self.section.new(self.name)
        if known is not None:
            config.CopyFrom(known)
        for name, value in self.values.items():
            self.section.fields[name].write(config, value)
        return config


def document_of(objects: Mapping[str, Sequence[Any]]) -> dict[str, Any]:
    """Return the document of the objects, by the title of their section."""
    found: dict[str, Any] = {"version": VERSION}
    for section in SECTIONS:
        found[section.title] = [_entry_of(section, each) for each in objects[section.title]]
    return found


def _entry_of(section: Section, config: Any) -> dict[str, Any]:
    values = {name: field.read(config) for name, field in section.fields.items()}
    kept = {name: value for name, value in values.items() if value not in ({}, [], None)}
    return {section.key: getattr(config, section.key), **kept}


def definitions_of(document: Any) -> tuple[dict[str, list[Definition]], list[str]]:
    """Return the objects of the sections that a document has, and what is wrong with the others.
    Raises ValueError if it is not a document of definitions."""
    if not isinstance(document, Mapping):
        raise ValueError("a document of definitions is a mapping with 'version', 'topics', ...")
    titles = {section.title: section for section in SECTIONS}
    _check_names(document, ("version", *titles), "")
    if document.get("version") != VERSION:
        raise ValueError(f"'version' must be {VERSION}, but is {document.get('version')!r}")
    problems: list[str] = []
    found = {
        title: _definitions(section, document[title], problems)
        for title, section in titles.items()
        if document.get(title) is not None
    }
    return found, problems


def _definitions(section: Section, entries: Any, problems: list[str]) -> list[Definition]:
    if not isinstance(entries, list) or len(entries) > OBJECTS_MAX:
        raise ValueError(f"'{section.title}' must be a list of at most {OBJECTS_MAX} objects")
    found: dict[str, Definition | None] = {}
    for number, entry in enumerate(entries, 1):
        where = f"{section.title}, object {number}"
        try:
            if not isinstance(entry, Mapping) or not isinstance(entry.get(section.key), str):
                raise ValueError(f"{where}: a mapping with a text '{section.key}' is needed")
            name = entry[section.key]
            if not name or name in found:
                found[name] = None  # none of the two is meant
                raise ValueError(f"{where}: the name '{name}' is {'twice' if name else 'empty'}")
            found[name] = None
            found[name] = _definition(section, name, entry)
        except ValueError as error:
            problems.append(str(error))
    return [each for each in found.values() if each is not None]


def _definition(section: Section, name: str, entry: Mapping[str, Any]) -> Definition:
    where = f"{section.title}, {name}"
    secrets = ("secret",) if section is USERS else ()
    _check_names(entry, (section.key, *section.fields, *secrets), f"{where}: ")
    secret = entry.get("secret") or ""
    if not isinstance(secret, str):
        raise ValueError(f"{where}: 'secret' must be a text")
    try:
        section.check_name(name)
        if secret:
            check_secret(secret)
    except ValueError as error:
        raise ValueError(f"{where}: {error}") from None
    values = {key: entry[key] for key in section.fields if entry.get(key) is not None}
    for key, value in values.items():  # on an object of its own, to check the value
        try:
            section.fields[key].write(section.new(name), value)
        except ValueError as error:
            raise ValueError(f"{where}: '{key}' {error}") from None
    return Definition(name, section, values, secret)


def _check_names(given: Iterable[Any], known: Sequence[str], where: str) -> None:
    for name in given:
        if name not in known:
            near = difflib.get_close_matches(str(name), known, 1)
            hint = f"did you mean '{near[0]}'?" if near else f"there are {', '.join(known)}"
            raise ValueError(f"{where}there is no field '{name}'; {hint}")


def _number(attribute: str, low: int, high: int) -> _Field:
    def write(config: Any, value: Any) -> None:
        if not isinstance(value, int) or isinstance(value, bool) or not low <= value <= high:
            raise ValueError(f"must be a number from {low} to {high}")
        setattr(config, attribute, value)

    return _Field(lambda config: getattr(config, attribute), write)


def _flag(attribute: str, *, inverse: bool = False) -> _Field:
    def write(config: Any, value: Any) -> None:
        if not isinstance(value, bool):
            raise ValueError("must be true or false")
        setattr(config, attribute, value is not inverse)

    return _Field(lambda config: getattr(config, attribute) is not inverse, write)


def _word(attribute: str, values: Mapping[str, Any], read: Callable[[Any], str]) -> _Field:
    def write(config: Any, value: Any) -> None:
        if not isinstance(value, str) or value.lower() not in values:
            raise ValueError(f"must be one of {', '.join(values)}")
        setattr(config, attribute, values[value.lower()])

    return _Field(read, write)


def _permission_word(config: Any) -> str:
    return next(word for word, bits in PERMISSIONS.items() if bits == config.perm & _PERM_BITS)


def _read_attributes(config: Any) -> dict[str, str]:
    found = sorted(config.attributes.items())
    return {key: value for key, value in found if key != MESSAGE_TYPE_ATTRIBUTE}


def _write_attributes(config: Any, value: Any) -> None:
    if not isinstance(value, Mapping) or not all(
        isinstance(part, str) for item in value.items() for part in item
    ):
        raise ValueError("must be a mapping of texts to texts")
    kept = config.attributes.get(MESSAGE_TYPE_ATTRIBUTE)
    config.attributes.clear()
    config.attributes.update(value)
    if kept is not None:
        config.attributes[MESSAGE_TYPE_ATTRIBUTE] = kept


def _read_retry(config: v1.GroupConfig) -> dict[str, Any] | None:
    retry = config.retry
    if retry.delays_ms:
        return {"delays": list(map(duration_text, retry.delays_ms))}
    if retry.initial_ms:
        first, longest = map(duration_text, (retry.initial_ms, retry.max_ms))
        return {"initial": first, "max": longest, "multiplier": retry.multiplier}
    return None


def _write_retry(config: v1.GroupConfig, value: Any) -> None:
    curve = {"initial", "max", "multiplier"}
    if not isinstance(value, Mapping) or set(value) not in ({"delays"}, curve):
        raise ValueError("must have 'delays', or 'initial', 'max' and 'multiplier'")
    if "delays" in value:
        delays = value["delays"]
        if not isinstance(delays, list) or not delays:
            raise ValueError("needs a list of durations as 'delays', for example [1s, 5s]")
        config.retry.CopyFrom(v1.GroupRetry(delays_ms=map(_duration, delays)))
        return
    multiplier = value["multiplier"]
    if not isinstance(multiplier, int | float) or isinstance(multiplier, bool):
        raise ValueError("needs a number as 'multiplier'")
    first, longest = _duration(value["initial"]), _duration(value["max"])
    config.retry.CopyFrom(
        v1.GroupRetry(initial_ms=first, max_ms=longest, multiplier=float(multiplier))
    )


def _duration(value: Any) -> int:
    if not isinstance(value, str):
        raise ValueError(f"has {value!r}, which is not a duration such as 5s")
    return duration_ms(value)


def _read_policies(config: v1.UserConfig) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = [
        {
            "resource": each.resource,
            "decision": "allow" if each.allow else "deny",
            "actions": action_names(Action(each.actions)),
            "from": list(each.sources),
        }
        for each in sorted(config.policies, key=lambda one: (one.resource, one.allow))
    ]
    return [{key: value for key, value in each.items() if value != []} for each in found]


def _write_policies(config: v1.UserConfig, value: Any) -> None:
    if not isinstance(value, list):
        raise ValueError("must be a list")
    if len(value) > POLICIES_MAX:
        raise ValueError(f"has {len(value)} policies: a user has at most {POLICIES_MAX}")
    policies = [_policy(each) for each in value]
    del config.policies[:]
    config.policies.extend(policies)


def _policy(entry: Any) -> v1.AclPolicy:
    if not isinstance(entry, Mapping):
        raise ValueError("must be a list of mappings")
    _check_names(entry, ("resource", "decision", "actions", "from"), "has an entry with an error: ")
    decision = str(entry.get("decision", "allow")).lower()
    actions, sources = entry.get("actions"), entry.get("from", [])
    if decision not in _DECISIONS:
        raise ValueError("needs allow or deny as 'decision'")
    if not isinstance(entry.get("resource"), str) or not _are_texts(actions) or not actions:
        raise ValueError("needs a text 'resource' and a list 'actions' in every entry")
    if not _are_texts(sources):
        raise ValueError("needs a list of addresses or networks as 'from'")
    if len(sources) > SOURCES_MAX:
        raise ValueError(
            f"has {len(sources)} entries in 'from': a policy has at most {SOURCES_MAX}"
        )
    return v1.AclPolicy(
        resource=str(ResourcePattern.parse(entry["resource"])),
        actions=parse_actions(",".join(actions)),
        allow=_DECISIONS[decision],
        sources=[str(parse_source(source)) for source in sources],
    )


def _are_texts(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(each, str) for each in value)


_ATTRIBUTES = _Field(_read_attributes, _write_attributes)

TOPICS = Section(
    "topics",
    "name",
    lambda name: v1.TopicConfig(name=name, perm=_PERM_BITS),
    {
        "type": _word(
            "message_type",
            TOPIC_TYPES,
            lambda config: TOPIC_TYPE_NAMES.get(config.message_type, "normal"),
        ),
        "read_queues": _number("read_queues", 1, _QUEUES_MAX),
        "write_queues": _number("write_queues", 1, _QUEUES_MAX),
        "permission": _word("perm", PERMISSIONS, _permission_word),
        "attributes": _ATTRIBUTES,
    },
)
GROUPS = Section(
    "groups",
    "name",
    lambda name: v1.GroupConfig(name=name, consume_enable=True),
    {
        "order": _flag("orderly"),
        "max_attempts": _number("max_attempts", 1, _ATTEMPTS_MAX),
        "consume_enable": _flag("consume_enable"),
        "retry_queues": _number("retry_queues", 1, _QUEUES_MAX),
        "retry": _Field(_read_retry, _write_retry),
        "attributes": _ATTRIBUTES,
    },
)
USERS = Section(
    "users",
    "name",
    lambda name: v1.UserConfig(name=name),
    {
        "type": _word(
            "is_super", _USER_TYPES, lambda config: "super" if config.is_super else "normal"
        ),
        "enabled": _flag("disabled", inverse=True),
        "policies": _Field(_read_policies, _write_policies),
    },
    check_user_name,
)
QUOTAS = Section(
    "quotas",
    "subject",
    lambda subject: v1.QuotaConfig(subject=subject),
    {limit: _number(limit, 0, _LIMIT_MAX) for limit in LIMITS},
    parse_subject,
)
SECTIONS = (TOPICS, GROUPS, USERS, QUOTAS)
