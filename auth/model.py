"""Users and policies, and the text form of their parts: `Topic:orders*`, `Pub,Sub`, `10.0.0.0/8`.

Parsing accepts any case and raises ValueError with a sentence for the user.
"""

from __future__ import annotations

import ipaddress
import re
from enum import IntFlag

from msgspec import Struct

#: Kinds of resources; ANY stands for all of them.
ANY, TOPIC, GROUP, CLUSTER = "*", "Topic", "Group", "Cluster"
_KINDS = {kind.lower(): kind for kind in (TOPIC, GROUP, CLUSTER)}
_GROUP_TOPICS = ("%RETRY%", "%DLQ%")

_USER_NAME = re.compile(r"[A-Za-z0-9_.@-]{1,64}")
_RESOURCE_NAME = re.compile(r"[%|a-zA-Z0-9_.+-]{1,255}")
SECRET_LENGTH_MAX = 128
#: Policies of one user: a user is one record of the metadata log.
POLICIES_MAX = 256
#: Time for which two secret keys of a user may be valid: a month.
OVERLAP_MAX_MS = 31 * 86_400_000
SOURCES_MAX = 64

Source = ipaddress.IPv4Network | ipaddress.IPv6Network


class Action(IntFlag):
    """What a policy allows or denies."""

    PUB = 1
    SUB = 2
    CREATE = 4
    UPDATE = 8
    DELETE = 16
    GET = 32
    LIST = 64
    ALL = 127


_ACTIONS = {str(action.name).lower(): action for action in (*Action, Action.ALL)}


def resource_of(kind: str, name: str) -> tuple[str, str]:
    """Return the resource that a request's topic, group or cluster is checked as.

    A retry or dead-letter topic counts as its group.
    """
    if kind == TOPIC and name.startswith("%"):
        for prefix in _GROUP_TOPICS:
            if name.startswith(prefix):
                return GROUP, name.removeprefix(prefix).partition("+")[0]
    return kind, name


class ResourcePattern(Struct, frozen=True):
    """The resources of a policy: one name, or all names with a prefix."""

    kind: str
    name: str
    prefix: bool = False

    @classmethod
    def parse(cls, text: str) -> ResourcePattern:
        """Parse `Topic:NAME`, `Topic:PREFIX*`, `Topic:*` or `*`. Raises ValueError."""
        if text == ANY:
            return cls(ANY, "", prefix=True)
        kind, colon, name = text.partition(":")
        known = _KINDS.get(kind.lower())
        if not colon or known is None:
            raise ValueError(
                f"resource '{text}' is invalid: use Topic:NAME, Group:NAME, Cluster:NAME or *"
            )
        prefix = name.endswith("*")
        name = name.removesuffix("*")
        if not _RESOURCE_NAME.fullmatch(name) and not (prefix and not name):
            raise ValueError(
                f"resource '{text}' is invalid: a name has letters, digits and % | _ - . +, "
                "and * only at its end"
            )
        known, name = resource_of(known, name)
        return cls(known, name, prefix)

    def __str__(self) -> str:
        if self.kind == ANY:
            return ANY
        return f"{self.kind}:{self.name}{'*' if self.prefix else ''}"

    def matches(self, kind: str, name: str) -> bool:
        """Return whether the resource belongs to the pattern."""
        if self.kind not in (kind, ANY):
            return False
        return name.startswith(self.name) if self.prefix else name == self.name

    @property
    def specificity(self) -> tuple[bool, bool, int]:
        """The order of patterns that match: a name, a longer prefix, a kind, any resource."""
        return self.kind != ANY, not self.prefix, len(self.name)


def parse_actions(text: str) -> Action:
    """Parse `Pub,Sub`. Raises ValueError."""
    actions = Action(0)
    for part in text.split(","):
        action = _ACTIONS.get(part.strip().lower())
        if action is None:
            names = ", ".join(action_names(Action.ALL))
            raise ValueError(f"action '{part.strip()}' is invalid: use {names} or All")
        actions |= action
    return actions


def action_names(actions: Action) -> list[str]:
    """Return the names of actions."""
    return [str(action.name).capitalize() for action in Action if action in actions]


def parse_source(text: str) -> Source:
    """Parse an address or a network (CIDR). Raises ValueError."""
    try:
        return ipaddress.ip_network(text, strict=False)
    except ValueError:
        raise ValueError(
            f"source '{text}' is neither an IP address nor a network such as 10.0.0.0/8"
        ) from None


class Policy(Struct, frozen=True):
    """One decision about a resource, for some actions and source addresses."""

    resource: ResourcePattern
    actions: Action
    allow: bool
    #: Empty: every address.
    sources: tuple[Source, ...] = ()

    def __str__(self) -> str:
        decision = "allow" if self.allow else "deny"
        text = f"{decision} {','.join(action_names(self.actions))} on {self.resource}"
        return f"{text} from {','.join(map(str, self.sources))}" if self.sources else text

    def applies(self, kind: str, name: str, action: Action, source: str) -> bool:
        """Return whether the policy decides about an action of a client with this address."""
        return (
            action in self.actions
            and self.resource.matches(kind, name)
            and (not self.sources or self._is_from(source))
        )

    def _is_from(self, source: str) -> bool:
        """Return whether the sources have an address; an unknown one has the least rights."""
        try:
            return _contains(self.sources, source)
        except ValueError:
            return not self.allow


def _contains(sources: tuple[Source, ...], source: str) -> bool:
    """Return whether networks have an address. Raises ValueError."""
    address = ipaddress.ip_address(source.partition("%")[0])
    if isinstance(address, ipaddress.IPv6Address) and address.ipv4_mapped is not None:
        address = address.ipv4_mapped
    return any(address in network for network in sources)


class User(Struct, frozen=True):
    """A user and its policies."""

    name: str
    #: Sealed (`secrets.py`).
    secret: bytes
    #: Type Super: every action on every resource is allowed.
    is_super: bool = False
    enabled: bool = True
    policies: tuple[Policy, ...] = ()
    #: Of the secret key before, sealed, which is accepted until this time as well.
    former: bytes = b""
    former_until_ms: int = 0


def check_user_name(name: str) -> None:
    """Raise ValueError if `name` cannot be a user's name."""
    if not _USER_NAME.fullmatch(name):
        raise ValueError(f"user name '{name}' is invalid: use 1-64 letters, digits, _ . @ -")


def check_secret(secret: str) -> None:
    """Raise ValueError if `secret` cannot be a user's secret key."""
    if not 8 <= len(secret) <= SECRET_LENGTH_MAX or not secret.isascii() or " " in secret:
        raise ValueError(
            f"a secret key has 8 to {SECRET_LENGTH_MAX} ASCII characters without spaces"
        )
