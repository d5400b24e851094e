"""Check of epoch histories: every entry begins with the first record of its epoch.

Source: docs/formats/ha.md, section 6.5 rule 3 and invariant I4. A byte with a wrong epoch is
harmless until the next election, which would truncate it.
"""

from __future__ import annotations

from pathlib import Path

from ..ha.state import epochs_file
from ..ha.state.epoch_scan import EPOCH_START_TAG
from ..proto import v1
from ..store.format.topic_names import META_TOPIC
from . import logwalk


def wrong_labels(store: Path) -> list[str]:
    """Return a line for every history entry whose bytes begin with another record.

    The node must be stopped.
    """
    history = epochs_file.load(store / "ha")
    log = store / "commitlog"
    files = logwalk.segments(log)
    if history is None or not files:
        return []
    begun = {
        (start.epoch, start.start or record.offset)
        for record in logwalk.walk(log)
        if record.topic == META_TOPIC and record.properties.get("TAGS") == EPOCH_START_TAG
        for start in (v1.EpochStart.FromString(record.body),)
    }
    # There were no epochs before the first entry, or retention deleted its first record.
    first, end = int(files[0].name), logwalk.log_end(log)
    return [
        f"{entry.epoch}@{entry.start} of {history} does not begin there in the log"
        for entry in history.entries
        if first < entry.start < end and (entry.epoch, entry.start) not in begun
    ]
