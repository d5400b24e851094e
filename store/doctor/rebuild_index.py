"""Rebuilds the index from the log in a new folder (docs/formats/store-format.md, section 4)."""

from pathlib import Path

from ..format.disk import Disk
from ..format.index_file import IndexHeader, IndexLayout, file_name
from ..format.index_keys import Entries
from ..format.index_writer import IndexWriter
from .layout import Layout
from .log_walk import LogWalk
from .verify import Progress


class IndexMaker:
    """Fills file after file in a new folder; names are increasing creation times."""

    def __init__(self, folder: Path, layout: IndexLayout, now_ms: int, disk: Disk) -> None:
        self._folder = folder
        self._layout = layout
        self._now_ms = now_ms
        self._disk = disk
        self._last = ""
        self._writer: IndexWriter | None = None
        folder.mkdir(parents=True)

    def put(self, entries: Entries) -> None:
        """Append all entries. Raises OSError."""
        begin = 0
        while begin < len(entries):
            writer = self._with_room()
            end = min(begin + writer.room, len(entries))
            writer.put(entries, begin, end)
            begin = end

    def _with_room(self) -> IndexWriter:
        writer = self._writer
        if writer is not None and writer.room:
            return writer
        header = writer.header.follower() if writer is not None else IndexHeader()
        self.finish()
        self._last = file_name(self._now_ms, self._last)
        path = str(self._folder / self._last)
        self._writer = IndexWriter(path, self._layout, header, self._disk, create=True)
        return self._writer

    def finish(self) -> None:
        """Complete the last file."""
        if self._writer is not None:
            self._writer.write_out()
            self._writer.sync()
            self._writer.close()
            self._writer = None


def rebuild_index(
    layout: Layout,
    sizes: IndexLayout,
    folder: Path,
    now_ms: int,
    disk: Disk,
    *,
    progress: Progress | None = None,
) -> None:
    """Index every record of the log into the new `folder`. Raises OSError."""
    maker = IndexMaker(folder, sizes, now_ms, disk)
    for batch in LogWalk(layout):
        for _, text in batch.texts():
            maker.put(text.entries())
        if progress is not None:
            last = int(batch.columns.position[-1] + batch.columns.size[-1])
            progress(batch.file.start + last - layout.log.start)
    maker.finish()
