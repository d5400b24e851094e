"""Decision: whether a user may do an action on a resource, and the policy that decides it. Pure.

The most specific policy that applies decides; a denial wins a tie; without one the action is
denied. (The reference sorts an allowing policy before a denying one:
docs/formats/grpc-api.md, section 2.4.)
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec import Struct

from .model import resource_of

if TYPE_CHECKING:
    from .model import Action, Policy, User


class Decision(Struct, frozen=True):
    """The outcome, and the policy that decided; None for a Super user and without a match."""

    allowed: bool
    policy: Policy | None = None


def decide(user: User, kind: str, name: str, action: Action, source: str) -> Decision:
    """Decide about one action of an enabled user whose client has the address `source`."""
    if user.is_super:
        return Decision(True)
    kind, name = resource_of(kind, name)
    applying = [p for p in user.policies if p.applies(kind, name, action, source)]
    if not applying:
        return Decision(False)
    policy = max(applying, key=lambda p: (p.resource.specificity, not p.allow))
    return Decision(policy.allow, policy)
