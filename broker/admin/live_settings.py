"""Settings of the running broker: which ones change at run time, and how.

All others are read once, when the broker starts. A change is checked as a whole first: it is
applied completely or not at all. It lasts until the process ends, also over a reopening of the
store; the configuration file stays as it is.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from dataclasses import fields, replace
from typing import Any

from msgspec import Struct

from ...nodes.setting_keys import entries, key_of
from ...proto import v2
from ...proto.errors import WireError

logger = logging.getLogger(__name__)

#: Origin of a changed value.
RUN_TIME = "run time"
#: Settings in one request; a broker has fewer.
CHANGES_MAX = 1_000


#: Of the broker's configuration.
BROKER = frozenset(
    ("auto_create_subscription_group", "max_topics", "max_groups", "wait_time_mills_in_send_queue")
)
#: Of the store's: the rules of retention and of a full disk.
STORE = frozenset(
    (
        "file_reserved_time",
        "delete_when",
        "disk_max_used_space_ratio",
        "disk_space_clean_forcibly_ratio",
        "disk_space_warning_level_ratio",
        "clean_file_forcibly_enable",
        "delete_file_batch_max",
        "destroy_maped_file_interval_forcibly",
    )
)


class Live(Struct):
    """Settings of one configuration class that change at run time."""

    config: Any
    names: frozenset[str]
    #: Takes the new configuration into use.
    apply: Callable[[Any], None]


class LiveSettings:
    """Values and origins of all settings, and the changes of some."""

    def __init__(
        self,
        settings: Mapping[str, tuple[str, str]],
        live: Iterable[Live],
        changed: Callable[[Any, Mapping[str, Any]], None],
    ) -> None:
        """`settings` maps keys to value and origin; `changed` gets a configuration and the values
        that changed, by field."""
        #: Value and origin by key; secrets are masked.
        self.settings = dict(settings)
        self._changed = changed
        self._live: dict[str, tuple[Live, str]] = {}
        for part in live:
            keys = {field.name: key_of(field) for field in fields(part.config)}
            self._live.update({keys[name]: (part, name) for name in part.names})

    def keys(self) -> list[str]:
        """Return the keys of settings that change at run time."""
        return sorted(self._live)

    def change(self, values: Mapping[str, str], *, dry_run: bool = False) -> list[str]:
        """Change settings; return the keys whose values differ now.

        A key with its present value is accepted, because tools send all that they read. Raises
        WireError, and then nothing is changed.
        """
        wanted = self._differing(values)
        plan: list[tuple[Live, Any, dict[str, Any]]] = []
        for part in {id(part): part for part, _ in self._live.values()}.values():
            own = {
                name: _parsed(key, wanted[key], getattr(part.config, name))
                for key, (owner, name) in self._live.items()
                if owner is part and key in wanted
            }
            if own:
                plan.append((part, _replaced(part.config, own), own))
        if not dry_run:
            for part, config, own in plan:
                self._use(part, config, own)
        return sorted(wanted)

    def _differing(self, values: Mapping[str, str]) -> dict[str, str]:
        if len(values) > CHANGES_MAX:
            raise WireError(v2.BAD_REQUEST, f"more than {CHANGES_MAX} settings in one request")
        unknown = sorted(values.keys() - self.settings.keys())
        if unknown:
            raise WireError(v2.NOT_FOUND, f"unknown setting {unknown[0]}; nothing was changed")
        wanted = {key: text for key, text in values.items() if self.settings[key][0] != text}
        fixed = sorted(wanted.keys() - self._live.keys())
        if fixed:
            raise WireError(
                v2.BAD_REQUEST,
                f"{', '.join(fixed)}: read at the start of the broker; change broker.conf and "
                "restart it. Nothing was changed.",
            )
        return wanted

    def _use(self, part: Live, config: Any, own: Mapping[str, Any]) -> None:
        part.apply(config)
        part.config = config
        names = {name: key for key, (owner, name) in self._live.items() if owner is part}
        shown = entries((config,), {})
        for name in own:
            key = names[name]
            value = shown[key][0]
            logger.warning("setting.changed key=%s value=%s", key, value)
            self.settings[key] = (value, RUN_TIME)
        self._changed(config, own)


def _parsed(key: str, text: str, present: Any) -> Any:
    """Return the value of a text, of the type of the present one. Raises WireError."""
    text = text.strip()
    if isinstance(present, bool):
        if text.lower() in ("true", "false"):
            return text.lower() == "true"
        raise WireError(v2.BAD_REQUEST, f"{key} is '{text}', but must be true or false")
    if isinstance(present, int):
        try:
            return int(text)
        except ValueError:
            raise WireError(v2.BAD_REQUEST, f"{key} is '{text}', but must be a number") from None
    return text


def _replaced(config: Any, values: Mapping[str, Any]) -> Any:
    """Return the configuration with other values. Raises WireError with its reason."""
    try:
        return replace(config, **values)
    except ValueError as error:
        raise WireError(v2.BAD_REQUEST, f"{error} Nothing was changed.") from None
