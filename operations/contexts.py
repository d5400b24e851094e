"""The file of contexts: for each named cluster its addresses, token, user and TLS.

The file is `cometmq/contexts.json` in $XDG_CONFIG_HOME, or else in ~/.config. It can hold secret
keys: it has mode 0600, and a file that others may read is refused. A context of a data directory of
`cometmq up` holds the directory alone; addresses, token and user are read from it at each use.
"""

import json
import os
import re
import stat
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import Any

from . import local_cluster, private_file
from .credentials import read_file
from .errors import CliError, Exit

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_OTHERS = stat.S_IRWXG | stat.S_IRWXO


@dataclass(frozen=True, slots=True)
class Context:
    """A named cluster. Paths are absolute; an empty text is an absent value."""

    endpoints: str = ""
    nameservers: str = ""
    data: str = ""
    token_file: str = ""
    access_key: str = ""
    secret_key: str = field(default="", repr=False)
    tls: bool = False
    tls_ca: str = ""
    tls_certificate: str = ""
    tls_key: str = ""
    trusted_network: bool = False

    def addresses(self) -> set[str]:
        """Return the endpoints and nameservers as HOST:PORT."""
        parts = f"{self.endpoints};{self.nameservers}".split(";")
        return {part.strip() for part in parts if part.strip()}

    def document(self) -> dict[str, Any]:
        """Return the values that are present."""
        return {name: value for name, value in asdict(self).items() if value}


@dataclass(slots=True)
class Contexts:
    """The content of the file."""

    current: str = ""
    entries: dict[str, Context] = field(default_factory=dict)

    def get(self, name: str) -> Context:
        """Return a context. Raises CliError."""
        if name not in self.entries:
            known = ", ".join(sorted(self.entries)) or "none"
            text = f"There is no context '{name}'. Known: {known}. Add it: cometmq context add."
            raise CliError(text, Exit.NOT_FOUND)
        return self.entries[name]


def checked_name(name: str) -> str:
    """Return a name of a new context. Raises CliError."""
    if _NAME.fullmatch(name) is None:
        text = f"'{name}' is not a name of a context: 1 to 64 letters, digits, '.', '_' and '-'."
        raise CliError(text, Exit.USAGE)
    return name


def file() -> Path:
    """Return the path of the file. Raises CliError without a home directory.

    A relative $XDG_CONFIG_HOME is ignored, as its rules say.
    """
    base = Path(os.environ.get("XDG_CONFIG_HOME", ""))
    if not base.is_absolute():
        try:
            base = Path.home() / ".config"
        except RuntimeError:  # a user of a container that is not in /etc/passwd
            text = "This user has no home directory: set HOME or XDG_CONFIG_HOME."
            raise CliError(text, Exit.USAGE) from None
    return base / "cometmq" / "contexts.json"


def load() -> Contexts:
    """Read the file; without one, or without a home directory, there is no context. Raises
    CliError."""
    try:
        path = file()
    except CliError:
        return Contexts()
    try:
        with path.open(encoding="utf-8") as opened:
            if os.fstat(opened.fileno()).st_mode & _OTHERS:
                text = f"Other users can read {path}, which holds secrets: chmod 600 {path}"
                raise CliError(text, Exit.USAGE)
            document = json.load(opened)
        names = {known.name for known in fields(Context)}
        return Contexts(
            str(document["current"]),
            {
                str(name): _context({key: value[key] for key in names & set(value)})
                for name, value in document["contexts"].items()
            },
        )
    except (FileNotFoundError, NotADirectoryError):  # the home of some services is /dev/null
        return Contexts()
    except OSError as error:
        raise CliError(f"Cannot read {path}: {error.strerror}.", Exit.USAGE) from None
    except (ValueError, KeyError, TypeError, AttributeError):
        raise CliError(f"{path} is damaged. Correct or delete it.", Exit.USAGE) from None


def with_files(context: Context) -> Context:
    """Return a context with the addresses, token and user that its data directory holds now.

    Those of a stopped cluster are absent. Raises CliError.
    """
    if not context.data:
        return context
    data = Path(context.data)
    file = local_cluster.existing(data, local_cluster.ADDRESSES_FILE)
    user = local_cluster.existing(data, local_cluster.CREDENTIALS_FILE)
    keys = read_file(user) if user else None
    return replace(
        context,
        endpoints=local_cluster.address("endpoints", file),
        nameservers=local_cluster.address("nameservers", file),
        token_file=str(local_cluster.existing(data, local_cluster.TOKEN_FILE) or ""),
        access_key=keys.access_key if keys else "",
        secret_key=keys.secret_key if keys else "",
    )


def _context(values: dict[str, Any]) -> Context:
    """Return a context of the file. Raises TypeError for a value of another type."""
    for known in fields(Context):
        if type(values.get(known.name, known.default)) is not type(known.default):
            raise TypeError
    return Context(**values)


def save(contexts: Contexts) -> None:
    """Replace the file. Raises CliError."""
    path = file()
    document = {
        "current": contexts.current,
        "contexts": {
            name: context.document() for name, context in sorted(contexts.entries.items())
        },
    }
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        private_file.replace(path, json.dumps(document, indent=2) + "\n")
    except OSError as error:
        raise CliError(f"Cannot write {path}: {error.strerror}.") from None
