"""The fast lane has existing files of every folder, and starts no cluster."""

from cometmq.tests import fast_lane


def test_every_file_left_out_exists() -> None:
    assert fast_lane.missing() == []


def test_the_lane_covers_every_folder() -> None:
    found = fast_lane.paths()
    for folder in fast_lane.FOLDERS:
        assert any(path.startswith(f"tests/{folder}/") for path in found), folder


def test_no_file_of_the_lane_starts_a_cluster() -> None:
    assert fast_lane.with_cluster() == []
