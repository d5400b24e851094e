"""Help texts of the commands, from a file: `--help` then imports neither click nor the command.

`scripts/gen_reference` writes `help.txt` from the commands, for terminals of 80 columns or more, as
click does not use more; a test compares them. A form feed and the words of a command precede its
text. Where the file has no answer (a narrower terminal, a name that is not listed, other options),
click prints the help.
"""

import os
import sys
from collections.abc import Sequence

FILE = os.path.join(os.path.dirname(__file__), "help.txt")
#: Width from which click's help no longer depends on the terminal.
COLUMNS_MIN = 80


def help_of(arguments: list[str]) -> str | None:
    """Return the text for `WORDS... --help` and `help WORDS...`; None: click must print it."""
    *words, last = arguments or ("",)
    if last not in ("-h", "--help"):
        if arguments[:1] != ["help"]:
            return None
        words = arguments[1:]
    if _columns() < COLUMNS_MIN:
        return None
    try:
        with open(FILE, encoding="utf-8") as file:
            texts = file.read()
    except OSError:
        return None
    _, found, rest = texts.partition(_head(words))
    return rest.partition("\f")[0] if found else None


def commands_of(word: str) -> list[str]:
    """Return the commands whose last word this is, as `message send` for `send`."""
    try:
        with open(FILE, encoding="utf-8") as file:
            heads = [part.partition("\n")[0] for part in file.read().split("\f")]
    except OSError:
        return []
    return [head for head in heads if head.split()[1:] == [word]]


def joined(texts: dict[tuple[str, ...], str]) -> str:
    """Return the content of the file; keys are the words of the commands."""
    return "".join(f"{_head(words)}{text}" for words, text in texts.items()) + "\f"


def _head(words: Sequence[str]) -> str:
    return f"\f{' '.join(words)}\n"


def _columns() -> int:
    """Return the width of the terminal as click determines it."""
    try:
        if columns := int(os.environ.get("COLUMNS", "0")):
            return columns
        return os.get_terminal_size(sys.stdout.fileno()).columns or COLUMNS_MIN
    except (ValueError, OSError):
        return COLUMNS_MIN
