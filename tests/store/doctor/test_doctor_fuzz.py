"""Whatever the bytes of a store are: the doctor reads them, judges them and plans, and never
fails."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from cometmq.store.doctor.dump import DumpState, Selection, index_entries, messages, timers, units
from cometmq.store.doctor.layout import discover
from cometmq.store.doctor.listing import list_store
from cometmq.store.doctor.repair_plan import plan_repair
from cometmq.store.doctor.verify import verify
from cometmq.tests.formats.cases import unpack

CHANGES = st.lists(
    st.tuples(
        st.sampled_from(["commitlog", "consumequeue", "consumequeue_ext", "index", "checkpoint"]),
        st.integers(0, 10_000),
        st.floats(0, 1, exclude_max=True),
        st.sampled_from(["flip", "zero", "ones", "cut", "copy", "noise"]),
        st.binary(min_size=1, max_size=64),
    ),
    min_size=1,
    max_size=4,
)


@pytest.fixture(scope="module")
def root() -> Iterator[Path]:
    with tempfile.TemporaryDirectory() as folder:
        yield unpack("ext", Path(folder))


def change(data: bytes, where: float, how: str, noise: bytes) -> bytes:
    at = int(where * len(data))
    end = min(at + len(noise), len(data))
    if how == "cut":
        return data[:at]
    part = {
        "flip": bytes((data[at] ^ 1 << noise[0] % 8,)) + data[at + 1 : end],
        "zero": bytes(end - at),
        "ones": b"\xff" * (end - at),
        "copy": data[: end - at],
        "noise": noise[: end - at],
    }[how]
    return data[:at] + part + data[end:]


@given(changes=CHANGES)
@settings(
    max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
def test_the_doctor_handles_any_damage(
    root: Path, changes: list[tuple[str, int, float, str, bytes]]
) -> None:
    before: dict[Path, bytes] = {}
    try:
        for folder, number, where, how, noise in changes:
            place = root / folder
            files = [p for p in sorted(place.rglob("*")) if p.is_file()] or [place]
            path = files[number % len(files)]
            data = path.read_bytes()
            before.setdefault(path, data)
            if data:
                path.write_bytes(change(data, where, how, noise))
        layout = discover(root)
        report = verify(layout)
        for one in report.findings.problems:
            assert 0 <= one.begin <= one.end, one
        plan_repair(layout, report)
        list_store(layout)
        for rows in (
            messages(layout, Selection(), DumpState()),
            units(layout, Selection()),
            index_entries(layout),
            timers(layout, Selection()),
        ):
            for _ in rows:
                pass
    finally:
        for path, data in before.items():
            path.write_bytes(data)
