"""Checks of the topics and brokers named in options.

A batch refuses a missing topic and suggests the nearest name, as Kafka's source does. A stream may
start before its topic exists: it logs a warning once and reads the topic from its first message. A
pattern without a match gives no rows and a warning. Topic names come from the broker, or from a
store's configuration and queue folders; a directory with only a commit log accepts every name.
"""

from __future__ import annotations

import difflib
import logging
from collections.abc import Iterable, Mapping
from typing import Final

from ..errors import OptionError
from .log import BrokerLog, Log
from .options import SourceOptions

logger = logging.getLogger(__name__)
_SHOWN: Final = 10


def refuse_missing_topics(options: SourceOptions, log: Log, logs: Mapping[str, BrokerLog]) -> None:
    """Check a batch read. Raises OptionError for a missing topic or broker."""
    _check_brokers(options, logs)
    names = _missing(options, log, logs)
    if names:
        raise OptionError(
            f"{_sentences(options, log, names)} A batch read needs existing topics; "
            "subscribePattern also accepts no match."
        )
    _warn_pattern(options, log)


def warn_missing_topics(options: SourceOptions, log: Log, logs: Mapping[str, BrokerLog]) -> None:
    """Check a new stream: warn about missing topics. Raises OptionError for a missing broker."""
    _check_brokers(options, logs)
    names = _missing(options, log, logs)
    if names:
        text = _sentences(options, log, names)
        logger.warning("pipeline.no_topic %s The query waits for it.", text)
    _warn_pattern(options, log)


def suggestion(name: str, known: Iterable[str]) -> str:
    """Return " Did you mean ...?", or the existing names, or an empty text."""
    names = {one.lower(): one for one in known}
    found = difflib.get_close_matches(name.lower(), names, 1)
    if found:
        return f" Did you mean {names[found[0]]!r}?"
    # Internal topics are no useful suggestion.
    shown = sorted(
        one for one in names.values() if not one.startswith(("%", "rmq_sys_", "RMQ_SYS_"))
    )
    more = ", ..." if len(shown) > _SHOWN else ""
    return f" There are: {', '.join(shown[:_SHOWN])}{more}." if shown else ""


def _missing(options: SourceOptions, log: Log, logs: Mapping[str, BrokerLog]) -> list[str]:
    seen = {topic for one in logs.values() for topic, _ in one.queues}
    rest = sorted((options.topics.topics or frozenset()) - seen)
    return log.missing_topics(rest) if rest else []


def _sentences(options: SourceOptions, log: Log, names: list[str]) -> str:
    where = options.access.endpoints if options.access is not None else ", ".join(options.paths)
    known = log.topic_names()
    return " ".join(
        f"There is no topic {name!r} in {where}.{suggestion(name, known)}" for name in names
    )


def _warn_pattern(options: SourceOptions, log: Log) -> None:
    pattern = options.topics.pattern
    if pattern is None:
        return
    known = log.topic_names()
    if known and not any(options.topics.matches(name) for name in known):
        logger.warning(
            "pipeline.no_topic No topic fully matches subscribePattern %r.%s",
            pattern,
            suggestion(pattern, known),
        )


def _check_brokers(options: SourceOptions, logs: Mapping[str, BrokerLog]) -> None:
    named = {name for queues in (options.assigned or {}).values() for name in queues} - {""}
    unknown = sorted(named - set(logs))
    if unknown and logs:
        known = ", ".join(sorted(logs))
        raise OptionError(
            f"assign names broker {unknown[0]!r}, which does not exist. Brokers are: {known}."
        )
