"""The policies of users: from an operator's words, and as rows of a table."""

from ..auth.model import Action, ResourcePattern, action_names, parse_actions, parse_source
from ..proto import v1
from .errors import CliError, Exit


def policy(resource: str, actions: str, sources: tuple[str, ...], decision: str) -> v1.AclPolicy:
    """Return the policy of the command's options. Raises CliError."""
    try:
        return v1.AclPolicy(
            resource=str(ResourcePattern.parse(resource)),
            actions=parse_actions(actions),
            allow=decision == "allow",
            sources=[str(parse_source(source)) for source in sources],
        )
    except ValueError as error:
        raise CliError(f"{error}.", Exit.USAGE) from None


def policy_rows(config: v1.UserConfig) -> list[dict[str, object]]:
    """Return a user's policies as table rows."""
    return [
        {
            "user": config.name,
            "decision": "allow" if rule.allow else "deny",
            "actions": ",".join(action_names(Action(rule.actions))),
            "resource": rule.resource,
            "from": ", ".join(rule.sources) or "everywhere",
        }
        for rule in config.policies
    ]
