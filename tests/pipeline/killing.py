"""Starts drivers of the streaming archive and kills them and their workers, by process id.

Every process is started here in a separate session; remaining ones are killed by id at the end.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import psutil

RUN_S = 600.0
POLL_S = 0.05


@dataclass
class Killer:
    """Drivers of one store, archive and checkpoint."""

    store: Path
    out: Path
    checkpoint: Path
    messages: int
    seed: int = 7
    runs: int = 0
    driver_kills: int = 0
    worker_kills: int = 0
    log: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._random = random.Random(self.seed)

    def batches(self) -> int:
        """Return the number of committed micro-batches."""
        return len(list((self.out / "_manifest").glob("batch.*.json")))

    def start(self) -> subprocess.Popen[str]:
        """Start a driver, each time with another number of partitions."""
        self.runs += 1
        arguments = [str(self.store), str(self.out), str(self.checkpoint)]
        arguments += [str(self.messages), str(1 + self.runs % 3)]
        module = "cometmq.tests.pipeline.archive_driver"
        return subprocess.Popen(
            [sys.executable, "-P", "-W", "ignore", "-m", module, *arguments],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
            env={**os.environ, "PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": "127.0.0.1"},
        )

    def kill_driver(self) -> bool:
        """Start a driver and kill it with its descendants after a commit.

        Return False if it finished before.
        """
        before = self.batches()
        driver = self.start()
        end = time.monotonic() + RUN_S
        while self.batches() == before and driver.poll() is None:
            assert time.monotonic() < end, "nothing was committed"
            time.sleep(POLL_S)
        time.sleep(self._random.uniform(0, 1.0))
        if driver.poll() is not None:
            return self._ended(driver)
        end_all(driver.pid)
        driver.wait()
        self._note(driver)
        self.driver_kills += 1
        return True

    def kill_workers(self, wanted: int) -> bool:
        """Start a driver and kill `wanted` of its Python workers. Return True if it finished."""
        driver = self.start()
        end = time.monotonic() + RUN_S
        before = self.batches()
        while driver.poll() is None:
            assert time.monotonic() < end, "the driver does not end"
            if self.worker_kills < wanted and self.batches() > before:
                found = workers(driver.pid)
                if found:
                    with suppress(psutil.NoSuchProcess):
                        self._random.choice(found).kill()
                        self.worker_kills += 1
                        before = self.batches()
                time.sleep(self._random.uniform(0, 0.3))
            time.sleep(POLL_S)
        return not self._ended(driver)

    def finish(self, tries: int = 5) -> None:
        """Start drivers until one has archived everything."""
        for _ in range(tries):
            if self.kill_workers(self.worker_kills):
                return
        raise AssertionError("no driver ended well:\n" + "\n".join(self.log[-2:]))

    def _ended(self, driver: subprocess.Popen[str]) -> bool:
        """Return whether the driver failed."""
        self._note(driver)
        end_all(driver.pid)
        return driver.returncode != 0

    def _note(self, driver: subprocess.Popen[str]) -> None:
        assert driver.stdout is not None
        self.log.append(driver.stdout.read()[-4000:])
        driver.stdout.close()


def workers(pid: int) -> list[psutil.Process]:
    """The Python workers of a driver: forks of Spark's daemon."""
    found = []
    with suppress(psutil.NoSuchProcess):
        for child in psutil.Process(pid).children(recursive=True):
            with suppress(psutil.NoSuchProcess):
                if "pyspark.daemon" in child.cmdline():
                    parent = child.parent()
                    if parent is not None and "pyspark.daemon" in parent.cmdline():
                        found.append(child)
    return found


def end_all(pid: int) -> None:
    """Send SIGKILL to a process and its descendants."""
    found: list[psutil.Process] = []
    with suppress(psutil.NoSuchProcess):
        found = psutil.Process(pid).children(recursive=True)
    with suppress(ProcessLookupError):
        os.killpg(pid, signal.SIGKILL)
    for process in found:
        with suppress(psutil.NoSuchProcess):
            process.kill()
