"""Check of extension units: tags and time of the record for every address in a queue unit.

Only units that a queue points to are checked (docs/formats/store-format.md, section 3.3).
"""

from typing import Final

from ..format.queue_ext import (
    HEAD,
    POSITION_MAX,
    UNIT_BYTES_MAX,
    decode_unit,
    is_address,
    position_of,
)
from ..scan.raw import Integers
from .layout import Layout, QueueFolder
from .problems import Findings
from .queue_view import OpenFiles, Units, file_at, read_bytes

_WINDOW_BYTES: Final = 4096


class ExtCheck:
    """Compares some units of one queue at a time."""

    def __init__(self, layout: Layout, findings: Findings, opened: OpenFiles) -> None:
        self._layout = layout
        self._findings = findings
        self._opened = opened
        self._folders = {(q.topic, q.queue_id): q for q in layout.of_kind("consumequeue_ext")}
        self._window: tuple[QueueFolder | None, int, bytes] = (None, 0, b"")

    def compare(self, folder: QueueFolder, units: Units, codes: Integers, times: Integers) -> None:
        """Compare `units` of the queue `folder` with the expected `codes` and `times`."""
        ext = self._folders.get((folder.topic, folder.queue_id))
        for address, code, time_ms in zip(
            units["code"].tolist(), codes.tolist(), times.tolist(), strict=True
        ):
            if is_address(address):
                self._compare_one(ext, folder, position_of(address), code, time_ms)

    def _compare_one(
        self, ext: QueueFolder | None, folder: QueueFolder, place: int, code: int, time_ms: int
    ) -> None:
        name = f"{folder.topic}/{folder.queue_id}"
        if ext is None or place > POSITION_MAX or file_at(ext.files, place) is None:
            what = f"A unit of queue {name} points to an extension at {place}, which is not there."
            self._findings.add(f"consumequeue_ext/{name}", 0, 0, what, "queue_ext")
            return
        unit = decode_unit(*self._around(ext, place))
        if unit is None:
            what = f"There is no extension unit at {place}, where queue {name} points to."
        elif (unit.tags_code, unit.store_timestamp_ms) != (code, time_ms):
            what = f"The extension unit at {place} of queue {name} is not that of its record."
        else:
            return
        file = file_at(ext.files, place)
        assert file is not None
        begin = place - file.start
        self._findings.add(
            self._layout.name(file.path), begin, begin + HEAD.size, what, "queue_ext"
        )

    def _around(self, ext: QueueFolder, place: int) -> tuple[bytes, int]:
        """Return bytes that hold the whole unit at `place`, and its position in them."""
        folder, begin, data = self._window
        if folder is ext and begin <= place and place + HEAD.size <= begin + len(data):
            size = HEAD.unpack_from(data, place - begin)[0]
            if place + size <= begin + len(data):
                return data, place - begin
        size = _WINDOW_BYTES
        while True:
            file = file_at(ext.files, place)
            assert file is not None
            length = min(size, file.start + ext.files.size - place)
            data = read_bytes(self._opened, ext.files, place, length)
            if size > UNIT_BYTES_MAX or decode_unit(data, 0) is not None:
                self._window = (ext, place, data)
                return data, 0
            size = UNIT_BYTES_MAX + 1
