"""Logs of a server process: level, format and destination.

A line is an event with a stable name: `group.state group=broker-a epoch=3`. In JSON it is one
object with the name in `event` and the values in `fields`, as numbers where they are numbers. Level
and format can be changed while the process runs: change the configuration file and send SIGHUP.
"""

import json
import logging
import re
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal

from ...operations.errors import CliError

# Ten files of 10 MiB: enough for weeks of state changes.
_LOG_FILE_BYTES = 10 << 20
_LOG_FILES = 9
_TEXT_FORMAT = "%(asctime)s %(levelname)s %(name)s %(message)s"
#: Control characters, and line ends of Unicode.
_CONTROLS = (*range(0x20), *range(0x7F, 0xA0), 0x2028, 0x2029)
_ESCAPES = {code: repr(chr(code))[1:-1] for code in _CONTROLS}
_EVENT = re.compile(r"[a-z0-9_]+(?:\.[a-z0-9_]+)+(?=:|\s|$)")
# A conversion of a %-template, with the key in front of it.
_CONVERSION = re.compile(r"(?:(\w+)=)?%(?:%|[-#0 +]*\d*(?:\.\d+)?[a-zA-Z])")


def _setting(default: Any, help_text: str) -> Any:
    return field(default=default, metadata={"help": help_text})


@dataclass(frozen=True, slots=True, kw_only=True)
class LogConfig:
    """What is logged, and how."""

    log_level: Literal["DEBUG", "INFO", "WARNING", "ERROR"] = _setting(
        "INFO", "Log events of this level and above. Read again on SIGHUP."
    )
    log_format: Literal["text", "json"] = _setting(
        "text", "Format of a log line; json: one object a line. Read again on SIGHUP."
    )


class TextFormatter(logging.Formatter):
    """Formats a record as a line of text: a value from a client begins no line of its own, and
    sends a terminal nothing."""

    def __init__(self) -> None:
        super().__init__(_TEXT_FORMAT)

    def formatMessage(self, record: logging.LogRecord) -> str:
        """Return the line without its traceback."""
        record.message = record.message.translate(_ESCAPES)
        return super().formatMessage(record)


class JsonFormatter(logging.Formatter):
    """Formats a record as one line of JSON: time, level, logger, event, fields, message."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the line."""
        message = record.getMessage()
        event = _EVENT.match(message)
        content = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname,
            "logger": record.name,
            "event": event[0] if event is not None else "log.text",
            "fields": fields_of(record),
            "message": message,
        }
        if record.exc_info:
            content["exception"] = self.formatException(record.exc_info)
        return json.dumps(content, ensure_ascii=False)


def fields_of(record: logging.LogRecord) -> dict[str, Any]:
    """Return the values of a record's `key=%s`, by key: numbers, booleans, and text."""
    if not isinstance(record.args, tuple) or not isinstance(record.msg, str):
        return {}
    keys = [found[1] for found in _CONVERSION.finditer(record.msg) if found[0] != "%%"]
    return {
        key: value if isinstance(value, (bool, int, float)) or value is None else str(value)
        for key, value in zip(keys, record.args, strict=False)
        if key
    }


def configure_logging(directory: Path | None, name: str, config: LogConfig) -> None:
    """Log to `directory`/`name`.log with bounded rotation, or to stderr. Raises CliError."""
    handler: logging.Handler = logging.StreamHandler()
    if directory is not None:
        from logging.handlers import RotatingFileHandler

        try:
            directory.mkdir(parents=True, exist_ok=True)
            handler = RotatingFileHandler(
                directory / f"{name}.log",
                maxBytes=_LOG_FILE_BYTES,
                backupCount=_LOG_FILES,
                encoding="utf-8",
                errors="backslashreplace",  # half a character of a client costs no line
            )
        except OSError as error:
            raise CliError(f"Cannot write logs to {directory}: {error.strerror}.") from None
    logging.basicConfig(handlers=[handler], force=True)
    adopt(config)


def adopt(config: LogConfig) -> None:
    """Use another level and format from now on."""
    root = logging.getLogger()
    root.setLevel(config.log_level)
    formatter = JsonFormatter() if config.log_format == "json" else TextFormatter()
    for handler in root.handlers:
        handler.setFormatter(formatter)
