"""Spark standalone cluster of the pip package on the loopback: a master and two one-core workers.

The pip package has no start scripts for them, but `spark-class` starts their classes. Only
processes started by this object are ended, by id.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Self

import psutil
import pyspark

from cometmq.pipeline.jvm import find_java
from cometmq.tests.harness.ports import free_port

HOME = Path(pyspark.__path__[0])
START_S = 180.0


class SparkCluster:
    """Use it with `with`; `url` is the master's."""

    def __init__(self, folder: Path, workers: int = 2) -> None:
        self.folder = folder
        self.url = f"spark://127.0.0.1:{free_port()}"
        self.processes: list[subprocess.Popen[bytes]] = []
        self._workers = workers

    def environment(self) -> dict[str, str]:
        """Return the environment of all processes."""
        return {
            **os.environ,
            "SPARK_HOME": str(HOME),
            "JAVA_HOME": find_java().home,
            "SPARK_LOCAL_IP": "127.0.0.1",
            "SPARK_WORKER_DIR": str(self.folder / "work"),
        }

    def __enter__(self) -> Self:
        try:
            port = self.url.rpartition(":")[2]
            self._start("master.Master", "--host", "127.0.0.1", "--port", port, "--webui-port", "0")
            self._wait("master", "I have been elected leader")
            for number in range(self._workers):
                more = ("--host", "127.0.0.1", "--cores", "1", "--memory", "1g")
                work = str(self.folder / f"work{number}")
                self._start("worker.Worker", *more, "--webui-port", "0", "-d", work, self.url)
            for number in range(self._workers):
                self._wait(f"worker{number}", "Successfully registered with master")
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def _start(self, name: str, *arguments: str) -> None:
        number = len(self.processes)
        log = self.folder / ("master.log" if not number else f"worker{number - 1}.log")
        self.folder.mkdir(parents=True, exist_ok=True)
        with log.open("wb") as file:
            self.processes.append(
                subprocess.Popen(
                    [str(HOME / "bin/spark-class"), f"org.apache.spark.deploy.{name}", *arguments],
                    stdin=subprocess.DEVNULL,
                    stdout=file,
                    stderr=subprocess.STDOUT,
                    env=self.environment(),
                )
            )

    def _wait(self, name: str, words: str) -> None:
        log = self.folder / f"{name}.log"
        end = time.monotonic() + START_S
        while words not in log.read_text(errors="replace"):
            if time.monotonic() > end:
                raise AssertionError(f"{name} did not start:\n{log.read_text(errors='replace')}")
            time.sleep(0.1)

    def submit(self, archive: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Run spark-submit of a pipeline job with a packed environment, as in docs/pipeline.md."""
        from cometmq.cli.pipeline import pack

        return subprocess.run(
            [
                *(str(HOME / "bin/spark-submit"), "--master", self.url),
                *("--archives", f"{archive}#environment"),
                *("--conf", "spark.pyspark.python=./environment/bin/python"),
                *("--conf", f"spark.pyspark.driver.python={sys.executable}"),
                *("--driver-memory", "512m", "--executor-memory", "512m"),
                str(Path(pack.__file__).with_name("submit.py")),
                *arguments,
            ],
            capture_output=True,
            text=True,
            check=False,
            timeout=600,
            env=self.environment(),
        )

    def stop(self) -> None:
        """End master, workers and their descendants."""
        for process in self.processes:
            try:
                children = psutil.Process(process.pid).children(recursive=True)
            except psutil.NoSuchProcess:
                children = []
            process.terminate()
            try:
                process.wait(15)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
            for child in children:
                if child.is_running():
                    child.kill()
        self.processes = []
