"""`cometmq pipeline lake` as a command: decoded bodies, a cluster, drivers killed by SIGKILL.

    python -m cometmq.tests.pipeline.jobs.lake_commands FORMAT FOLDER [CHECK ...]

Prints `held: NAME` for each check, with what it saw.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import pyarrow.dataset as ds
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from pyspark import __version__ as SPARK

import cometmq
from cometmq.client.testing.broker import TestBroker
from cometmq.pipeline.lake_tables import TableFormat, packages
from cometmq.tests.pipeline.killing import end_all
from cometmq.tests.pipeline.logs import MadeLog, message

COUNT = 60
WAIT_S = 300.0
POLL_S = 0.002
UNREADABLE = b"\xff"  # no Avro int and no Protobuf tag
AVRO = {
    "type": "record",
    "name": "Order",
    "fields": [{"name": "id", "type": "int"}, {"name": "cents", "type": "long"}],
}


#: Maven lacks that of the newest patch release.
AVRO_PACKAGE = ("org.apache.spark:spark-avro_2.13:4.1.1",)


class Job:
    """Commands on one table."""

    def __init__(self, form: TableFormat, table: Path) -> None:
        self.form, self.table = form, table
        self.checkpoint = Path(f"{table}.checkpoint")

    def command(self, job: str, *arguments: str) -> list[str]:
        start = [sys.executable, "-P", "-W", "ignore", "-m", "cometmq.cli.main", "pipeline", job]
        chosen = ["--format", self.form, "--table", str(self.table), "--master", "local[2]"]
        for name in ("spark.sql.shuffle.partitions", "spark.databricks.delta.snapshotPartitions"):
            chosen += ["--conf", f"{name}=2"]
        return [*start, *arguments, *chosen]

    def run(self, job: str, *arguments: str) -> dict[str, Any]:
        """Run a command; return its document. Repeat it if Python did not start in Spark's 10 s."""
        for _ in range(9):
            line = [*self.command(job, *arguments), "-o", "json"]
            done = subprocess.run(line, capture_output=True, text=True, check=False)
            if done.returncode == 0:
                found: dict[str, Any] = json.loads(done.stdout)
                return found
            if "failed to connect back" not in done.stderr:
                break
        raise AssertionError(f"{job}: {done.returncode} {(done.stdout + done.stderr)[-3000:]}")

    def rows(self) -> list[dict[str, Any]]:
        """Return the rows of a table that no statement but inserts has changed."""
        folder = self.table / "data" if self.form == "iceberg" else self.table
        paths = [str(one) for one in folder.rglob("*.parquet") if "_delta_log" not in one.parts]
        found: list[dict[str, Any]] = ds.dataset(paths).to_table().to_pylist()
        return found

    def versions(self) -> int:
        """Return the number of versions of the table."""
        if self.form == "delta":
            return len(list((self.table / "_delta_log").glob("*.json")))
        return len(list((self.table / "metadata").glob("*.metadata.json")))

    def begun(self) -> int:
        return count(self.checkpoint / "offsets")

    def committed(self) -> int:
        return count(self.checkpoint / "commits")


def count(folder: Path) -> int:
    """Return the number of batches in a folder of a checkpoint."""
    return sum(one.name.isdigit() for one in folder.iterdir()) if folder.exists() else 0


def zigzag(number: int) -> bytes:
    left, found = number << 1, b""
    while left > 0x7F:
        found, left = found + bytes([left & 0x7F | 0x80]), left >> 7
    return found + bytes([left])


def decoded(job: Job, store: Path, *arguments: str, more: tuple[str, ...] = ()) -> None:
    own = f"spark.jars.packages={','.join((*packages(job.form, '', SPARK), *more))}"
    chosen = ("--conf", own) if more else ()
    report = job.run("lake", str(store), "--topic", "t", "--batch", *arguments, *chosen)
    assert report["added"] == COUNT, report
    read = {int(row["msgId"], 16): row for row in job.rows()}
    assert sorted(read) == list(range(COUNT))
    for number, row in read.items():
        value = row["value"] or {"id": None, "cents": None}
        bad = number % 10 == 9
        expected = (None, None) if bad else (number, number * 1000)
        assert (value["id"], value["cents"]) == expected, (number, value)
        assert not bad or row["body"] == UNREADABLE


def avro_bodies(form: TableFormat, folder: Path) -> None:
    """Bodies in Avro, every tenth unreadable."""
    bodies = (UNREADABLE if n % 10 == 9 else zigzag(n) + zigzag(n * 1000) for n in range(COUNT))
    log = MadeLog(folder / "avro").append(*(message(n, body=b) for n, b in enumerate(bodies)))
    (folder / "order.avsc").write_text(json.dumps(AVRO))
    chosen = ("--body", "avro", "--schema", str(folder / "order.avsc"))
    decoded(Job(form, folder / "lake" / "bronze" / "avro"), log.root, *chosen, more=AVRO_PACKAGE)


def protobuf_bodies(form: TableFormat, folder: Path) -> None:
    """Bodies in Protobuf, every tenth unreadable: only by name, where Maven has spark-protobuf."""
    file = descriptor_pb2.FileDescriptorProto(name="order.proto", package="shop", syntax="proto2")
    kind = file.message_type.add(name="Order")
    field = descriptor_pb2.FieldDescriptorProto
    for number, (name, type_) in enumerate((("id", field.TYPE_INT32), ("cents", field.TYPE_INT64))):
        kind.field.add(name=name, number=number + 1, type=type_, label=field.LABEL_OPTIONAL)
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    order = message_factory.GetMessageClass(pool.FindMessageTypeByName("shop.Order"))
    bodies = (
        UNREADABLE if n % 10 == 9 else order(id=n, cents=n * 1000).SerializeToString()
        for n in range(COUNT)
    )
    log = MadeLog(folder / "protobuf").append(*(message(n, body=b) for n, b in enumerate(bodies)))
    place = folder / "order.desc"
    place.write_bytes(descriptor_pb2.FileDescriptorSet(file=[file]).SerializeToString())
    chosen = ("--body", "protobuf", "--schema", str(place), "--message", "shop.Order")
    decoded(Job(form, folder / "lake" / "bronze" / "protobuf"), log.root, *chosen)


class Sender:
    """Sends numbered orders to a topic."""

    def __init__(self, broker: TestBroker) -> None:
        self.broker, self.sent = broker, 0
        broker.create_topic("orders", type="normal", queues=4)

    def send(self, more: int) -> None:
        with cometmq.sync.Producer(self.broker.endpoints) as producer:
            for number in range(self.sent, self.sent + more):
                producer.send("orders", b"order %d" % number)
        self.sent += more


def killed_drivers(form: TableFormat, folder: Path) -> None:
    """A stream from a cluster: its driver is killed during a batch, and between the commit of the
    table and Spark's. In the end each message is in the table once."""
    job = Job(form, folder / "lake" / "bronze" / "orders")
    with TestBroker(directory=folder / "broker") as broker:
        sender = Sender(broker)
        (log,) = (folder / "broker").rglob("commitlog")
        said = ("--endpoint", broker.endpoints, "--topic", "orders")
        for at, reached in {
            "while a batch was written": lambda seen: job.begun() > seen[0],
            "behind the table's commit": lambda seen: job.versions() > seen[1],
        }.items():
            sender.send(200)
            kill_in_next_batch(job, said, sender, reached)
            print(
                f"killed {at}: {job.begun()} batches begun, {job.committed()} committed, "
                f"{job.versions()} versions of the table, {sender.sent} messages sent",
                flush=True,
            )
        report = job.run("lake", *said)
        assert report["total_rows"] == sender.sent, report
        report = job.run("verify", str(log.parent), "--topic", "orders")
        found = {key: report[key] for key in ("missing", "twice", "changed", "extra", "messages")}
        print(found, flush=True)
        assert found == {
            **dict.fromkeys(("missing", "twice", "changed", "extra"), 0),
            "messages": sender.sent,
        }


def kill_in_next_batch(
    job: Job, said: tuple[str, ...], sender: Sender, reached: Callable[[tuple[int, int]], bool]
) -> None:
    """Follow the topic, and kill the driver when its second batch has reached a point."""
    driver = follow(job, said)
    before = (job.begun(), job.versions())
    sender.send(100)
    try:
        assert until(driver, lambda: reached(before)), "the driver ended before it was killed"
    finally:
        end_all(driver.pid)
        driver.wait()


def follow(job: Job, said: tuple[str, ...]) -> subprocess.Popen[bytes]:
    """Start a driver that has committed a batch, as often as Python needs to start in ten
    seconds."""
    seen = job.committed()
    for _ in range(9):
        line = job.command("lake", *said, "--follow", "1s")
        driver = subprocess.Popen(line, stdout=subprocess.DEVNULL, start_new_session=True)
        if until(driver, lambda: job.committed() > seen):
            return driver
    raise AssertionError("no driver has committed a batch")


def until(driver: subprocess.Popen[bytes], holds: Callable[[], bool]) -> bool:
    """Wait for a condition; return False if the driver ends before."""
    end = time.monotonic() + WAIT_S
    while not holds():
        if driver.poll() is not None:
            end_all(driver.pid)
            return False
        assert time.monotonic() < end, "the driver does not go on"
        time.sleep(POLL_S)
    return True


CHECKS = (avro_bodies, killed_drivers)
BY_NAME = (*CHECKS, protobuf_bodies)


def main(form: str, folder: str, *chosen: str) -> None:
    for check in [one for one in BY_NAME if one.__name__ in chosen] or CHECKS:
        check(cast(TableFormat, form), Path(folder))
        print(f"held: {check.__name__}", flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
