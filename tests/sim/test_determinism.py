"""One seed gives one story: in another process, and with another hash seed of strings."""

import os
import subprocess
import sys

from .world import run_seed

SEEDS = (3, 17, 52)
PROGRAM = """
from cometmq.tests.sim.world import run_seed
for seed in {seeds}:
    story = []
    verdict = run_seed(seed, story=story)
    print(verdict.fingerprint, verdict.events, len(story), sum(map(len, story)))
"""


def fingerprints(hash_seed: str) -> str:
    program = PROGRAM.format(seeds=SEEDS)
    command = [sys.executable, "-P", "-c", program]
    environment = {**os.environ, "PYTHONHASHSEED": hash_seed}
    result = subprocess.run(
        command, capture_output=True, text=True, check=True, env=environment, timeout=300
    )
    return result.stdout


def test_a_seed_gives_the_same_run_in_every_process() -> None:
    first = fingerprints("0")
    assert len(first.splitlines()) == len(SEEDS)
    assert first == fingerprints("12345")
    here = run_seed(SEEDS[0])
    assert first.split()[0] == str(here.fingerprint)


def test_different_seeds_give_different_runs() -> None:
    assert len({run_seed(seed).fingerprint for seed in SEEDS}) == len(SEEDS)


def test_recording_the_story_does_not_change_the_run() -> None:
    story: list[str] = []
    assert run_seed(SEEDS[1], story=story).fingerprint == run_seed(SEEDS[1]).fingerprint
    assert story
