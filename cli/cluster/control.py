"""The supervisor's control socket: a unix socket in the data directory, one JSON line each way.

The server side is in `control_server.py`.

    request   {"restart": "master"}, {"status": ""} or {"stop": ""}
    answer    {"ok": {...}} or {"error": "a sentence", "code": 1}

Only the owner of the directory may connect (mode 0600). A path too long for a socket address (108
bytes on Linux) is opened through the directory's descriptor in /proc.
"""

import json
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from ...operations.errors import CliError, Exit

_PATH_BYTES_MAX = 100


def ask(path: Path, key: str, value: str, timeout_s: float) -> dict[str, Any]:
    """Make one request to the supervisor and return its answer. Raises CliError."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        connection.settimeout(timeout_s)
        try:
            with short_address(path) as address:
                connection.connect(address)
            connection.sendall(json.dumps({key: value}).encode() + b"\n")
            with connection.makefile("rb") as file:
                line = file.readline()
        except TimeoutError:
            raise CliError(f"No answer to `{key} {value}` within {timeout_s:g} s.") from None
        except OSError:
            raise CliError(
                f"No `cometmq up` is running on {path.parent}. Name its data directory with --data."
            ) from None
    if not line:
        raise CliError("The supervisor ended before it answered.")
    answer = json.loads(line)
    if "error" in answer:
        raise CliError(answer["error"], Exit(answer["code"]))
    result: dict[str, Any] = answer["ok"]
    return result


@contextmanager
def short_address(path: Path) -> Iterator[str]:
    """Yield a path of the socket that is short enough for a socket address."""
    if len(os.fsencode(path)) <= _PATH_BYTES_MAX:
        yield str(path)
        return
    fd = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        yield f"/proc/self/fd/{fd}/{path.name}"
    finally:
        with suppress(OSError):
            os.close(fd)
