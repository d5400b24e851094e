"""How a process that cannot start says why."""

import errno
import json
import logging
import os
from typing import NoReturn

import pytest

from cometmq.cli.server.process import Supervision, start_or_explain


def _fail_to_write() -> NoReturn:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def test_a_full_disk_is_reported_with_a_traceback_in_the_log(
    caplog: pytest.LogCaptureFixture,
) -> None:
    reader, writer = os.pipe()
    try:
        with caplog.at_level(logging.ERROR), pytest.raises(SystemExit):
            start_or_explain("broker", Supervision(True, writer), _fail_to_write, lambda: ())
        said = json.loads(os.read(reader, 4096))
    finally:
        os.close(reader)
        os.close(writer)
    assert said["error"].endswith("See its log.")
    assert "_fail_to_write" in caplog.text
