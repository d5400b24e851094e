"""Loading the consume queues of a store when it is opened. Changes no file."""

import logging
import os
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial

from ..format.errors import UnsupportedLayoutError
from ..format.layout import NAME_DIGITS, list_files
from ..format.queue_files import QueueFiles, salvage
from ..format.topic_names import check_topic
from .consume_queue import WHOLE_FILE_BYTES, ConsumeQueue
from .table import QueueTable

logger = logging.getLogger(__name__)


def load_queues(
    table: QueueTable,
    is_whole: Callable[[ConsumeQueue, int, int, int], bool],
    log_start: int,
    *,
    clean: bool = True,
) -> list[str]:
    """Load all queues; return paths of files that a crash left unfinished.

    Raises UnsupportedLayoutError for files that no crash explains (after a clean stop: any but an
    unfinished last file).
    """
    unfinished: list[str] = []
    topics = _folders(table.directory)
    with_ext = table.exts.exist
    batch = os.path.join(os.path.dirname(table.directory), "batchconsumequeue")
    table.batch_topics = frozenset(_folders(batch)) - frozenset(topics)
    if table.batch_topics:
        logger.warning("queues.left_alone batch_topics=%s", ",".join(sorted(table.batch_topics)))
    for topic in topics:
        for name in _folders(os.path.join(table.directory, topic)):
            if _is_queue(topic, name):
                queue = table.queue(topic, int(name))
                unfinished += _load(queue, table.files.files, partial(is_whole, queue), clean)
                queue.correct_min_offset(log_start)
                if with_ext:
                    table.exts.check(queue)
    return unfinished


def _load(
    queue: ConsumeQueue,
    files: QueueFiles,
    is_whole: Callable[[int, int, int], bool],
    clean: bool,
) -> Sequence[str]:
    """Load one queue; the common small one, of a single file, takes one listing and one read."""
    size, directory = files.size, queue.directory
    if size <= WHOLE_FILE_BYTES:
        names = os.listdir(directory)
        if len(names) == 1 and len(names[0]) == NAME_DIGITS and names[0].isdecimal():
            data = files.read_once(f"{directory}/{names[0]}", size + 1)
            if len(data) == size:
                queue.load((int(names[0]),), is_whole, data)
                return ()
    try:
        found = list_files(directory, size, "mappedFileSizeConsumeQueue")
    except UnsupportedLayoutError:
        starts, others = ([], []) if clean else salvage(directory, size)
        if not others:
            raise
        queue.load(starts, is_whole)
        return others
    queue.load(found.starts, is_whole)
    return (found.unfinished,) if found.unfinished else ()


def _is_queue(topic: str, name: str) -> bool:
    """Return whether these folder names can be a queue's; others are ignored."""
    with suppress(ValueError):
        check_topic(topic)
        return name.isascii() and name.isdecimal() and str(int(name)) == name
    return False


def _folders(directory: str) -> list[str]:
    try:
        with os.scandir(directory) as entries:
            return sorted(entry.name for entry in entries if entry.is_dir())
    except FileNotFoundError:
        return []
