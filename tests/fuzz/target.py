"""A fuzz target: a function of bytes that raises if the code under test breaks a promise.

Targets are generators, entered by the decorator `target`: they open what they need in a directory,
yield the function, and close it. Seeds lie in `corpus/NAME`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

CORPUS = Path(__file__).parent / "corpus"

Check = Callable[[bytes], None]
Open = Callable[[Path], AbstractContextManager[Check]]

TARGETS: dict[str, Open] = {}

#: Modules of targets, and the code that guides atheris: instrumenting more takes longer than
#: fuzzing.
GUIDES = {
    "codecs": "store.format broker.messages broker.sql broker.pop.handles"
    " broker.delay.recall_handle broker.journal.revive_codec broker.transactions.records"
    " remoting",
    "files": "store.format store.timer broker.metadata broker.offsets.entries",
    "services": "broker.messages broker.clients broker.admin broker.lite broker.pull"
    " broker.pop.receive broker.pop.request broker.pop.ack broker.routing broker.sending"
    " broker.transactions.service broker.delay.recall nameserver ha.stream ha.core.controller",
    "rights": "broker.access broker.classic remoting",
    # Processor time is measured of the code as it runs: without instrumentation.
    "costs": "",
}


def target(function: Callable[[Path], Iterator[Check]]) -> Callable[[Path], Iterator[Check]]:
    """Enter a target under its function's name."""
    TARGETS[function.__name__] = contextmanager(function)
    return function


def seeds(name: str) -> list[bytes]:
    """Return the seeds of a target."""
    return [file.read_bytes() for file in sorted((CORPUS / name).iterdir())]
