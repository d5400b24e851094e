"""The cluster token: who has it has the rights of a node, so a weak one is refused. Pure.

The token, unless there is a key file, also encrypts the secret keys of users in the log, which
someone who has the log can try to guess.
"""

from typing import Final

#: Random hexadecimal digits of 16 characters are 64 bits.
_CHARS_MIN: Final = 16
#: A random text of this length has more; a repeated word or `aaaa` has fewer.
_DIFFERENT_MIN: Final = 8
#: Placeholders of documentation, compared without their case.
_PLACEHOLDERS: Final = (
    "replace",
    "change-me",
    "changeme",
    "your-token",
    "password",
    "secret-token",
)


def check_cluster_token(token: str) -> None:
    """Raise ValueError with a sentence for a token that could be guessed; empty: there is none."""
    if not token:
        return
    if len(token) < _CHARS_MIN:
        reason = f"it has {len(token)} characters"
    elif len(set(token)) < _DIFFERENT_MIN:
        reason = f"it has only {len(set(token))} different characters"
    elif any(word in token.lower() for word in _PLACEHOLDERS):
        reason = "it is a placeholder"
    else:
        return
    raise ValueError(
        f"clusterToken is too weak: {reason}. Use at least {_CHARS_MIN} random characters, the "
        "same on all nodes, for example those that `openssl rand -hex 24` prints."
    )
