"""The configuration loader: flags, environment and files to dataclasses, with each value's origin.

The dataclasses are the only source of name, type, default, unit and help. From a field
`flush_disk_type` this module derives the key `flushDiskType` (or `metadata["key"]`), the variable
`COMETMQ_FLUSH_DISK_TYPE` and the flag `--flush-disk-type`. Precedence: flag, environment, file,
default. An unknown key is a warning with the nearest known key, or an error with `strict`; a
RocketMQ key that is not used here is a notice, or an error if it protects or replicates.
"""

import dataclasses
import difflib
import math
import os
import re
import typing
from collections.abc import Iterable, Mapping
from enum import Enum
from pathlib import Path
from typing import Any, Literal, TypeVar

import msgspec

from ...operations.errors import CliError, Exit
from . import properties
from .rocketmq_keys import IGNORED, REFUSED

ENVIRONMENT_PREFIX = "COMETMQ_"
# Variables of the process and the command line; not settings.
_OTHER_VARIABLES = frozenset(
    (
        "COMETMQ_ENDPOINT",
        "COMETMQ_CONTEXT",
        "COMETMQ_TRACEBACK",
        "COMETMQ_NATIVE",
        "COMETMQ_ACCESS_KEY",
        "COMETMQ_SECRET_KEY",
    )
)
_TRUE_FALSE = {"true": True, "false": False}
_OTHER_SPELLINGS = {
    **dict.fromkeys(("yes", "on", "1", "y", "t"), "true"),
    **dict.fromkeys(("no", "off", "0", "n", "f"), "false"),
}
# Two words that differ in more are two settings, not a typing error.
_SIMILARITY_MIN = 0.85
#: By unit of a setting: the units that other files write behind a number.
_SIZES = {name: 1 << 10 * power for power, name in enumerate("bkmgt")}
_FACTORS = {
    "%": {"%": 1},
    "bytes": _SIZES | {f"{name}b": size for name, size in _SIZES.items()},
    "ms": {"ms": 1, "s": 1_000, "m": 60_000, "mi": 60_000, "h": 3_600_000, "d": 86_400_000},
    "hours": {"h": 1, "ho": 1, "d": 24, "da": 24},
}
_COMMENT = re.compile(r"\s+(#|//|!|--)")
_HIDDEN = "********"
_FILE_SUFFIX = "_FILE"

T = TypeVar("T")


class Setting(msgspec.Struct, frozen=True):
    """One setting; `owners` are the dataclasses that have the field."""

    key: str
    field: str
    kind: Any
    default: Any
    help: str
    unit: str
    secret: bool
    owners: tuple[type, ...]

    @property
    def variable(self) -> str:
        """The environment variable."""
        return ENVIRONMENT_PREFIX + self.field.upper()

    @property
    def flag(self) -> str:
        """The long flag."""
        return "--" + self.field.replace("_", "-")


class Value(msgspec.Struct, frozen=True):
    """The value of a setting and its origin."""

    setting: Setting
    value: Any
    origin: str

    @property
    def shown(self) -> str:
        """The value as text; secrets are hidden, booleans written as in a file."""
        if self.setting.secret and self.value:
            return _HIDDEN
        return as_text(self.value)


class Loaded(msgspec.Struct, frozen=True):
    """The result: the dataclasses, all values by key, and messages for the user."""

    configs: Mapping[type, Any]
    values: Mapping[str, Value]
    warnings: tuple[str, ...]
    notices: tuple[str, ...]
    #: Settings of the file that belong to another process.
    elsewhere: tuple[str, ...] = ()

    def config(self, owner: type[T]) -> T:
        """Return the instance of one dataclass."""
        instance = self.configs[owner]
        assert isinstance(instance, owner)
        return instance


def camel_case(name: str) -> str:
    """Convert `flush_disk_type` to the form of broker.conf: `flushDiskType`."""
    head, *rest = name.split("_")
    return head + "".join(part[:1].upper() + part[1:] for part in rest)


def schema(owners: Iterable[type]) -> dict[str, Setting]:
    """Return the settings of dataclasses by key; a field that two share is one setting."""
    settings: dict[str, Setting] = {}
    for owner in owners:
        kinds = typing.get_type_hints(owner)
        for field in dataclasses.fields(owner):
            key = field.metadata.get("key") or camel_case(field.name)
            known = settings.get(key)
            settings[key] = Setting(
                key=key,
                field=field.name,
                kind=kinds[field.name],
                default=known.default if known else _default(field),
                help=field.metadata.get("help", ""),
                unit=field.metadata.get("unit", ""),
                secret=bool(field.metadata.get("secret")) or field.name.endswith("token"),
                owners=(*(known.owners if known else ()), owner),
            )
    return settings


def load(
    owners: Iterable[type],
    *,
    file: Path | None = None,
    flags: Mapping[str, str] | None = None,
    environment: Mapping[str, str] | None = None,
    strict: bool = False,
    elsewhere: Iterable[type] = (),
) -> Loaded:
    """Create every dataclass of `owners`. Raises CliError.

    `flags` has field names as keys. `elsewhere` are dataclasses of other processes: they share the
    environment, and maybe the file, so their settings are not reported as unknown.
    """
    settings = schema(owners)
    foreign = schema(elsewhere)
    others = {setting.variable for setting in foreign.values()}
    messages = _Messages()
    values = {s.key: Value(s, s.default, "default") for s in settings.values()}
    if file is not None:
        values.update(_from_file(file, settings, foreign, messages))
    variables = os.environ if environment is None else environment
    variables = _with_secrets(variables, settings, foreign)
    own = {name: text for name, text in variables.items() if _is_ours(name, others, settings)}
    values.update(_from_environment(own, settings, messages))
    by_field = {setting.field: setting for setting in settings.values()}
    for name, text in (flags or {}).items():
        setting = by_field[name]
        origin = f"flag {setting.flag}"
        values[setting.key] = Value(setting, _typed(setting, text, origin), origin)
    if strict and messages.warnings:
        raise CliError(" ".join(messages.warnings), Exit.USAGE)
    classic = values.get("remotingListenPort")
    if messages.classic_port and classic is not None and not classic.value:
        messages.warnings.append(
            f"{messages.classic_port}: 'listenPort' is not used, and the port of classic clients is"
            " off: set remotingListenPort."
        )
    texts = (tuple(messages.warnings), tuple(messages.notices), tuple(messages.elsewhere))
    return Loaded(_build(values), values, *texts)


class _Messages(msgspec.Struct):
    warnings: list[str] = msgspec.field(default_factory=list)
    notices: list[str] = msgspec.field(default_factory=list)
    elsewhere: list[str] = msgspec.field(default_factory=list)
    #: Where the file names Apache's port of classic clients; or empty.
    classic_port: str = ""

    def unknown(self, name: str, where: str, known: Iterable[str]) -> None:
        near = difflib.get_close_matches(name, list(known), n=1, cutoff=_SIMILARITY_MIN)
        hint = f"; did you mean '{near[0]}'?" if near else "."
        self.warnings.append(f"{where}: unknown setting '{name}'{hint}")


def _from_file(
    file: Path, settings: Mapping[str, Setting], foreign: Mapping[str, Setting], messages: _Messages
) -> dict[str, Value]:
    try:
        entries = properties.read(file)
    except OSError as error:
        raise CliError(f"Cannot read {file}: {error.strerror}.", Exit.USAGE) from None
    except properties.PropertiesError as error:
        raise CliError(str(error), Exit.USAGE) from None
    values: dict[str, Value] = {}
    for entry in entries:
        where = f"{file}:{entry.line}"
        setting = settings.get(entry.key)
        if setting is not None:
            if entry.key in values:
                messages.notices.append(f"{where}: '{entry.key}' is set twice; this value is used.")
            values[entry.key] = Value(setting, _typed(setting, entry.value, where), f"file {where}")
        elif entry.key in REFUSED:
            harmless, instead = REFUSED[entry.key]
            if entry.value.strip().lower() not in harmless:
                text = f"{where}: {entry.key}={entry.value.strip()} is not supported: {instead}."
                raise CliError(text, Exit.USAGE)
        elif entry.key in IGNORED:
            messages.notices.append(f"{where}: '{entry.key}' is ignored: {IGNORED[entry.key]}.")
            if entry.key == "listenPort":
                messages.classic_port = where
        elif entry.key in foreign:
            messages.elsewhere.append(f"{where}: '{entry.key}' is a setting of another process.")
        else:
            messages.unknown(entry.key, where, settings)
    return values


def _from_environment(
    environment: Mapping[str, str], settings: Mapping[str, Setting], messages: _Messages
) -> dict[str, Value]:
    by_variable = {setting.variable: setting for setting in settings.values()}
    values: dict[str, Value] = {}
    for name in sorted(environment):
        setting = by_variable.get(name)
        if setting is None:
            messages.unknown(name, "environment", by_variable)
            continue
        origin = f"environment {name}"
        values[setting.key] = Value(setting, _typed(setting, environment[name], origin), origin)
    return values


def _with_secrets(
    variables: Mapping[str, str], settings: Mapping[str, Setting], foreign: Mapping[str, Setting]
) -> dict[str, str]:
    """Replace VARIABLE_FILE of each secret setting by VARIABLE with the content of that file.

    So a container takes its secrets from mounted files, and no listing of its environment has
    them. Raises CliError.
    """
    result = dict(variables)
    for key, setting in {**foreign, **settings}.items():
        name = setting.variable + _FILE_SUFFIX
        if not setting.secret or name not in variables:
            continue
        file = result.pop(name)
        if key not in settings or not file:
            continue
        if setting.variable in variables:
            raise CliError(f"Set {setting.variable} or {name}, not both.", Exit.USAGE)
        try:
            result[setting.variable] = Path(file).read_text(encoding="utf-8").strip()
        except (OSError, UnicodeDecodeError) as error:
            reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
            raise CliError(f"{name}: cannot read {file}: {reason}.", Exit.USAGE) from None
    return result


def _is_ours(name: str, others: set[str], settings: Mapping[str, Setting]) -> bool:
    """Return True if a variable is, or looks like, a setting of this process."""
    if not name.startswith(ENVIRONMENT_PREFIX) or name in _OTHER_VARIABLES:
        return False
    return name not in others or any(setting.variable == name for setting in settings.values())


def _build(values: Mapping[str, Value]) -> dict[type, Any]:
    arguments: dict[type, dict[str, Any]] = {}
    for value in values.values():
        for owner in value.setting.owners:
            arguments.setdefault(owner, {})[value.setting.field] = value.value
    configs: dict[type, Any] = {}
    for owner, fields in arguments.items():
        try:
            configs[owner] = owner(**fields)
        except ValueError as error:
            raise CliError(_with_origins(str(error), values), Exit.USAGE) from None
    return configs


def _with_origins(sentence: str, values: Mapping[str, Value]) -> str:
    """Append the origins of the values that an error message names."""
    origins = [
        f"{key} from {value.origin}"
        for key, value in values.items()
        if key in sentence and value.origin != "default"
    ]
    return f"{sentence.rstrip('.')}. ({', '.join(origins)})" if origins else sentence


def _typed(setting: Setting, text: str, where: str) -> Any:
    """Convert the text to the field's type. Raises CliError."""
    text = text.strip()
    kind = setting.kind
    unit = f" of {setting.unit}" if setting.unit else ""
    if kind is bool:
        if text.lower() not in _TRUE_FALSE:
            raise _refused(setting, text, where, "true or false")
        return _TRUE_FALSE[text.lower()]
    if kind is int:
        return _number(int, setting, text, where, f"a whole number{unit}")
    if kind is float:
        return _number(float, setting, text, where, f"a number{unit}")
    choices = _choices(kind)
    if choices and text not in choices:
        raise _refused(setting, text, where, "one of " + ", ".join(choices))
    return kind(text) if isinstance(kind, type) and issubclass(kind, Enum) else text


def _number(kind: type, setting: Setting, text: str, where: str, wanted: str) -> Any:
    try:
        return kind(text)
    except ValueError:
        raise _refused(setting, text, where, wanted) from None


def _refused(setting: Setting, text: str, where: str, wanted: str) -> CliError:
    hint = _hint(setting, text)
    text = f"{where}: {setting.key} must be {wanted}, but is '{text}'."
    return CliError(f"{text} {hint}" if hint else text, Exit.USAGE)


def _hint(setting: Setting, text: str) -> str:
    """Return how a value is written here that other files write differently; or empty."""
    value, *comment = _COMMENT.split(text, maxsplit=1)
    if comment and value:
        return "A comment needs a line of its own."
    if setting.kind is bool and text.lower() in _OTHER_SPELLINGS:
        return f"Write {_OTHER_SPELLINGS[text.lower()]}."
    plain = text.strip("'\"")
    if plain != text:
        return f"Write {plain}, without quotes."
    if choices := _choices(setting.kind):
        near = [choice for choice in choices if choice.startswith(text.upper())]
        return f"Write {near[0]}." if text and len(near) == 1 else ""
    if setting.kind is not int:
        return ""
    factors = [part.strip().rstrip("lL").replace("_", "") for part in text.split("*")]
    if all(factor.isascii() and factor.isdigit() for factor in factors):
        return f"Write {math.prod(map(int, factors))}."
    share = re.fullmatch(r"(0?\.\d+)[fFdD]?", text)
    if share and setting.unit == "%":
        return f"Write {round(float(share[1]) * 100)}."
    with_unit = re.fullmatch(r"(\d+)\s*([A-Za-z%]+)", text)
    factor = _FACTORS.get(setting.unit, {}).get(with_unit[2].lower()[:2]) if with_unit else None
    return f"Write {int(with_unit[1]) * factor}." if with_unit and factor else ""


def _choices(kind: Any) -> tuple[str, ...]:
    if typing.get_origin(kind) is Literal:
        return tuple(str(choice) for choice in typing.get_args(kind))
    if isinstance(kind, type) and issubclass(kind, Enum):
        return tuple(str(member.value) for member in kind)
    return ()


def _default(field: "dataclasses.Field[Any]") -> Any:
    if field.default_factory is not dataclasses.MISSING:
        return field.default_factory()
    assert field.default is not dataclasses.MISSING, f"{field.name} has no default"
    return field.default


def as_text(value: Any) -> str:
    """Return a value as it is written in a file."""
    if isinstance(value, bool):
        return "true" if value else "false"
    return str(value.value) if isinstance(value, Enum) else str(value)
