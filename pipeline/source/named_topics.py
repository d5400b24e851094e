"""Topics and brokers that somebody named and that are not there.

A misspelt name gave no rows and no word. A batch refuses it now, with the suggestion name, as Kafka's source
refuses an unknown topic. A stream may be started before its topic is made: it says so once, as a warning,
and reads the topic from its first message on. A pattern that nothing matches is no error in Kafka either:
no rows, and a warning. Topics are known by the broker (over the wire), or by a store's configuration and
the folders of its queues; where a directory holds nothing but the log, every name may be right.
"""

from __future__ import annotations

import difflib
import logging
from collections.abc import Iterable, Mapping
from typing import Final

from ..errors import OptionError
from .log import BrokerLog, Log
from .options import SourceOptions

_log = logging.getLogger(__name__)
_SHOWN: Final = 10


def refuse_missing_topics(options: SourceOptions, log: Log, logs: Mapping[str, BrokerLog]) -> None:
    """For a batch. Raises OptionError."""
    _check_brokers(options, logs)
    names = _absent(options, log, logs)
    if names:
        raise OptionError(
            f"{_said(options, log, names)} A batch reads topics that are there; subscribePattern "
            "takes those that match, were it none."
        )
    _warn_pattern(options, log)


def warn_missing_topics(options: SourceOptions, log: Log, logs: Mapping[str, BrokerLog]) -> None:
    """For a stream that begins. Raises OptionError for a broker that is not there."""
    _check_brokers(options, logs)
    names = _absent(options, log, logs)
    if names:
        _log.warning("pipeline.no_topic %s The query waits for it.", _said(options, log, names))
    _warn_pattern(options, log)


def suggestion(name: str, known: Iterable[str]) -> str:
    """ " Did you mean ...?", or which names there are, or nothing."""
    names = {one.lower(): one for one in known}
    found = difflib.get_close_matches(name.lower(), names, 1)
    if found:
        return f" Did you mean {names[found[0]]!r}?"
    # Topics of the broker itself are no news to somebody who looks for another one.
    shown = sorted(
        one for one in names.values() if not one.startswith(("%", "rmq_sys_", "RMQ_SYS_"))
    )
    more = ", ..." if len(shown) > _SHOWN else ""
    return f" There are: {', '.join(shown[:_SHOWN])}{more}." if shown else ""


def _absent(options: SourceOptions, log: Log, logs: Mapping[str, BrokerLog]) -> list[str]:
    seen = {topic for one in logs.values() for topic, _ in one.queues}
    rest = sorted((options.topics.topics or frozenset()) - seen)
    return log.missing_topics(rest) if rest else []


def _said(options: SourceOptions, log: Log, names: list[str]) -> str:
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
    if known and not any(options.topics.wants(name) for name in known):
        _log.warning(
            "pipeline.no_topic No topic matches subscribePattern %r as a whole.%s",
            pattern,
            suggestion(pattern, known),
        )


def _check_brokers(options: SourceOptions, logs: Mapping[str, BrokerLog]) -> None:
    named = {name for queues in (options.assigned or {}).values() for name in queues} - {""}
    unknown = sorted(named - set(logs))
    if unknown and logs:
        known = ", ".join(sorted(logs))
        raise OptionError(
            f"assign names broker {unknown[0]!r}, which is not there; there are: {known}."
        )
