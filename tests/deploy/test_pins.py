"""What the build takes from elsewhere is named so that it cannot change."""

from __future__ import annotations

import re
from pathlib import Path

import yaml

ROOT = Path(__file__).resolve().parents[2]


def test_actions_are_named_by_commit() -> None:
    used = [
        step["uses"]
        for file in (ROOT / ".github" / "workflows").glob("*.yml")
        for job in yaml.safe_load(file.read_text())["jobs"].values()
        for step in job["steps"]
        if "uses" in step
    ]
    assert used
    assert not [each for each in used if not re.search(r"@[0-9a-f]{40}$", each)]


def test_images_have_a_version_and_can_be_named_by_digest() -> None:
    services = yaml.safe_load((ROOT / "docker-compose.yml").read_text())["services"]
    images = {service["image"] for service in services.values() if "image" in service}
    foreign = {image for image in images if not image.startswith("cometmq:")}
    assert len(foreign) == 3
    pattern = re.compile(r"\$\{[A-Z]+_IMAGE:-[a-z/]+:v?\d+\.\d+\.\d+\}")
    assert not [image for image in foreign if not pattern.fullmatch(image)]
