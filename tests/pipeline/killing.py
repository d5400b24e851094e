"""Runs the streaming archive's driver, and kills it and its workers at chosen moments, by process id.

Every process is started here, in a session of its own; what is left at the end is killed by id, too.
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

RUN_S = 180.0
POLL_S = 0.05


@dataclass
class Killer:
    """One store, one archive, one checkpoint, and as many drivers as it takes."""

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
        """Micro-batches that are committed."""
        return len(list((self.out / "_manifest").glob("batch.*.json")))

    def start(self) -> subprocess.Popen[str]:
        """A driver; the number of partitions is another one every time."""
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
        """Start one, let it commit something, kill it and all that it has started. False: it was done
        before."""
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
        """Start one and kill its Python workers while it runs, `wanted` in all; True: it has ended
        well."""
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
        """Until a driver says that everything is archived."""
        for _ in range(tries):
            if self.kill_workers(self.worker_kills):
                return
        raise AssertionError("no driver ended well:\n" + "\n".join(self.log[-2:]))

    def _ended(self, driver: subprocess.Popen[str]) -> bool:
        """Whether it failed."""
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
    """SIGKILL for a process and everything that it has started."""
    found: list[psutil.Process] = []
    with suppress(psutil.NoSuchProcess):
        found = psutil.Process(pid).children(recursive=True)
    with suppress(ProcessLookupError):
        os.killpg(pid, signal.SIGKILL)
    for process in found:
        with suppress(psutil.NoSuchProcess):
            process.kill()
