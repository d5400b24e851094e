"""Fetch and build every program of other languages that tests run, before a test needs it.

`scripts/test` runs this beside the first tests. What cannot be fetched is printed; the tests that
need it skip or fail with the reason.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable

import pytest

from cometmq.tests.interop import programs
from cometmq.tests.interop.apache import oracle
from cometmq.tests.interop.remoting import test_java_clients, test_mqadmin, test_spring


def go_packages() -> None:
    """Compile the Go clients into Go's cache: a test may be running the program itself."""
    programs.require("go")
    for folder in (programs.HERE / "go", programs.HERE.parent / "remoting" / "go"):
        programs.build(["go", "build", "-o", os.devnull, "./..."], folder)


BUILDERS: tuple[tuple[str, Callable[[], object]], ...] = (
    ("Java client", programs.java),
    ("Node.js client", programs.node),
    ("Go clients", go_packages),
    ("Apache broker", oracle.classpath),
    ("Java 5.5.0 of remoting", lambda: test_java_clients.java("5.5.0")),
    ("Java 4.9.8 of remoting", lambda: test_java_clients.java("4.9.8")),
    ("mqadmin", test_mqadmin.java),
    ("Spring starter", test_spring.java),
)


def main() -> None:
    """Call every builder and print how long it took."""
    for name, build in BUILDERS:
        began = time.monotonic()
        try:
            build()
        except (Exception, pytest.skip.Exception) as error:
            print(f"{name}: {error}", flush=True)
        else:
            print(f"{name}: {time.monotonic() - began:.1f} s", flush=True)


if __name__ == "__main__":
    main()
