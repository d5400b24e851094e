"""Whether a store's epoch history tells the truth about its log: every entry begins with the first record of its epoch.

Source: HA note, 6.5 rule 3 and invariant I4. A byte with another epoch's label is right until the next election, which
would cut it off.
"""

from __future__ import annotations

from pathlib import Path

from cometmq.ha.state import epochs_file
from cometmq.ha.state.epoch_scan import EPOCH_START_TAG, META_TOPIC
from cometmq.proto import v1

from . import logwalk


def wrong_labels(store: Path) -> list[str]:
    """A sentence for every entry of the history whose bytes begin with something else. The node is stopped."""
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
    # Before the first entry there were no epochs, or retention has taken its first record.
    first, end = int(files[0].name), logwalk.log_end(log)
    return [
        f"{entry.epoch}@{entry.start} of {history} does not begin there in the log"
        for entry in history.entries
        if first < entry.start < end and (entry.epoch, entry.start) not in begun
    ]
