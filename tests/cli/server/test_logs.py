"""Logs of server processes: JSON lines, stable events, and a level that changes at run time."""

from __future__ import annotations

import json
import logging
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any, Literal

import pytest

from cometmq.cli.server.logs import JsonFormatter, LogConfig, configure_logging
from cometmq.tests.harness.cluster import wait_until


def formatted(template: str, *args: Any, error: BaseException | None = None) -> dict[str, Any]:
    """Return the JSON object of one record."""
    exc_info = (type(error), error, error.__traceback__) if error is not None else None
    record = logging.LogRecord("a.b", logging.INFO, "f.py", 1, template, args, exc_info)
    line = JsonFormatter().format(record)
    assert "\n" not in line
    content: dict[str, Any] = json.loads(line)
    return content


def test_values_keep_their_type_and_text_its_spaces() -> None:
    line = formatted(
        "group.state group=%s epoch=%d took_ms=%.1f why=%s done=%s", "g", 3, 1.25, "a b=c", True
    )
    assert line["event"] == "group.state"
    assert line["fields"] == {
        "group": "g",
        "epoch": 3,
        "took_ms": 1.25,
        "why": "a b=c",
        "done": True,
    }
    assert line["message"] == "group.state group=g epoch=3 took_ms=1.2 why=a b=c done=True"
    assert (line["level"], line["logger"]) == ("INFO", "a.b")


def test_values_without_a_key_and_percent_signs_are_skipped() -> None:
    line = formatted("disk.full use=%d %% of %s path=%s", 91, "it", Path("/x"))
    assert line["fields"] == {"use": 91, "path": "/x"}


def test_a_line_without_an_event_name_is_text() -> None:
    assert formatted("hello %s", "world")["event"] == "log.text"
    assert formatted("timer.message_damaged: %s", "x")["event"] == "timer.message_damaged"


def test_a_value_begins_no_line_of_its_own_and_no_character_costs_a_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = logging.getLogger()
    monkeypatch.setattr(root, "handlers", [])
    monkeypatch.setattr(root, "level", root.level)
    value = "id\n2026 ERROR role.changed\r\x1b[2J\x9b\u2028\ud800"
    shown = r"id\n2026 ERROR role.changed\r\x1b[2J\x9b\u2028\ud800"
    names: tuple[Literal["text", "json"], ...] = ("text", "json")
    for name in names:
        configure_logging(tmp_path, name, LogConfig(log_format=name))
        logging.getLogger("a.b").warning("transaction.dropped message=%s", value)
        root.handlers.pop().close()
        text = (tmp_path / f"{name}.log").read_text()
        assert text.count("\n") == 1 and "transaction.dropped message=" in text
        assert name == "json" or (shown in text and text.rstrip("\n").isprintable())


def test_a_traceback_is_part_of_its_line() -> None:
    try:
        raise KeyError("a")
    except KeyError as error:
        line = formatted("door.internal_error path=%s", "/p", error=error)
    assert "KeyError: 'a'" in line["exception"]


def test_level_and_format_change_while_the_process_runs(tmp_path: Path) -> None:
    file = tmp_path / "namesrv.conf"
    settings = "bindAddress=127.0.0.1\nlistenPort=0\n"
    file.write_text(settings + "logFormat=json\nlogLevel=WARNING\n")
    command = [sys.executable, "-P", "-m", "cometmq.cli.main", "namesrv", "-c", str(file)]
    read_end, write_end = os.pipe()
    process = subprocess.Popen(
        [*command, "--log-dir", str(tmp_path), "--report-fd", str(write_end)],
        pass_fds=(write_end,),
    )
    os.close(write_end)
    log = tmp_path / "namesrv.log"
    try:
        assert b"bound" in os.read(read_end, 4_096)
        assert log.read_text() == "", "below the level"
        file.write_text(settings + "logFormat=json\nlogLevel=DEBUG\n")
        process.send_signal(signal.SIGHUP)
        wait_until("the level is changed", lambda: "log.reloaded" in log.read_text(), 60)
        lines = [json.loads(line) for line in log.read_text().splitlines()]
        (reloaded,) = [line for line in lines if line["event"] == "log.reloaded"]
        assert reloaded["fields"] == {"level": "DEBUG", "format": "json"}
        file.write_text(settings + "logLevel=LOUD\n")
        process.send_signal(signal.SIGHUP)
        wait_until("the fault is logged", lambda: "log.not_reloaded" in log.read_text(), 60)
        assert "logLevel must be one of" in log.read_text()
        assert process.poll() is None
    finally:
        process.terminate()
        assert process.wait(60) == 0
        os.close(read_end)
