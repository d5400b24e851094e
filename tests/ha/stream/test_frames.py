"""Frames, and payloads that are larger than a frame."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cometmq.ha.core import follower_events, hello
from cometmq.ha.stream import frames
from cometmq.proto import v1


@given(payload=st.binary(max_size=1000), piece_bytes=st.integers(1, 400))
def test_the_pieces_of_a_payload_are_joined(payload: bytes, piece_bytes: int) -> None:
    joiner = frames.MetaJoiner()
    joined = [
        joiner.add(piece) for piece in frames.meta_pieces("OFFSETS", 1, 7, payload, piece_bytes)
    ]
    assert joined[-1] == payload
    assert all(part is None for part in joined[:-1])


def test_a_newer_version_replaces_an_unfinished_one() -> None:
    joiner = frames.MetaJoiner()
    old, new = (list(frames.meta_pieces("OFFSETS", 1, version, b"abcd", 2)) for version in (1, 2))
    assert joiner.add(old[0]) is None
    assert [joiner.add(piece) for piece in new] == [None, b"abcd"]


def test_a_payload_above_the_limit_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(frames, "META_BYTES_MAX", 10)
    joiner = frames.MetaJoiner()
    joiner.add(v1.Meta(version=1, payload=b"123456", more=True))
    with pytest.raises(ValueError, match="more than 10 bytes"):
        joiner.add(v1.Meta(version=1, payload=b"123456", more=True))


def test_enumeration_names_match_protobuf() -> None:
    for code in hello.RejectCode:
        assert v1.RejectCode.Name(v1.RejectCode.Value(code.value)) == code.value
    for reason in follower_events.NackReason:
        assert v1.NackCode.Name(v1.NackCode.Value(reason.value)) == reason.value


def test_a_chunk_carries_its_offset_and_the_confirm_offset() -> None:
    raw = frames.chunk(
        epoch=2,
        epoch_start=64,
        offset=100,
        data=b"bytes",
        crc=5,
        confirm=90,
        flushed=80,
        ts=7,
        ends_on_boundary=True,
    )
    chunk = v1.LeaderFrame.FromString(raw).chunk
    assert (chunk.epoch, chunk.epoch_start, chunk.offset, chunk.data) == (2, 64, 100, b"bytes")
    assert (chunk.crc32, chunk.confirm, chunk.leader_flushed, chunk.ts) == (5, 90, 80, 7)
    assert chunk.ends_on_boundary
