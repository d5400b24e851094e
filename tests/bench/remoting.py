"""The remoting port under the reference's own benchmark, beside the reference in the same run.

`python -m cometmq.tests.bench.remoting [--messages N] [--without-reference]` prints rows: CPU of
the server process for each message that `org.apache.rocketmq.example.benchmark.Producer` of 5.5.0
sends (64 threads, 1 KiB), and for each one that pulls of 32 read. Both servers store to the page
cache, one replica. A first run of the producer warms each server: after 60,000 messages
the JVM of the reference still needs more than twice the CPU time. Our process is that of
`up --single`: broker and nameserver.

Producer and server share the machine, so rates are those of both together: compare CPU for each
message, as a ratio of one run.
"""

from __future__ import annotations

import argparse
import json
import re
import socket
import subprocess
import tempfile
from dataclasses import dataclass, replace

from cometmq.remoting.codec import FrameReader, encode
from cometmq.remoting.codes import Request
from cometmq.remoting.command import Command

from ..harness.cluster import temporary
from .processes import cpu_seconds
from .reference.run import SMALL_JAVA, ReferenceMissing, examples, jars, running
from .rows import Row, show
from .server import ASYNC, GROUP, TOPIC, prepared

PRODUCER = "org.apache.rocketmq.example.benchmark.Producer"
THREADS, BODY_BYTES, PULLED = 64, 1024, 32
PRODUCER_S, ANSWER_S = 600, 60
SHARE, PULL_US = 0.7, 5.0


@dataclass(frozen=True, slots=True)
class Figures:
    """One server."""

    messages_per_s: float
    send_us: float
    #: Of each message of a pull of 32.
    pull_us: float


class Puller:
    """A consumer that pulls one queue after the other, one request at a time."""

    def __init__(self, nameserver: str) -> None:
        route = self._ask(_connected(nameserver), Request.GET_ROUTEINFO_BY_TOPIC, {"topic": TOPIC})
        found = json.loads(re.sub(rb"([{,])(\d+):", rb'\1"\2":', route.body))
        (broker,) = found["brokerDatas"]
        (queues,) = found["queueDatas"]
        self._queues = int(queues["readQueueNums"])
        self._broker = _connected(broker["brokerAddrs"]["0"])

    def pull_all(self) -> int:
        """Pull all queues from their beginning; return the number of messages."""
        return sum(self._pull_queue(queue_id) for queue_id in range(self._queues))

    def _pull_queue(self, queue_id: int) -> int:
        offset = 0
        while True:
            fields = {
                **{"consumerGroup": GROUP, "topic": TOPIC, "queueId": str(queue_id)},
                **{"queueOffset": str(offset), "maxMsgNums": str(PULLED), "sysFlag": "4"},
                **{"commitOffset": "0", "suspendTimeoutMillis": "0", "subscription": "*"},
                **{"subVersion": "0", "expressionType": "TAG"},
            }
            answer = self._ask(self._broker, Request.PULL_MESSAGE, fields)
            if answer.code:
                return offset
            offset = int(answer.fields["nextBeginOffset"])

    @staticmethod
    def _ask(server: socket.socket, code: int, fields: dict[str, str]) -> Command:
        server.sendall(encode(Command(code, fields)))
        reader = FrameReader()
        while True:
            data = server.recv(1 << 20)
            if not data:
                raise RuntimeError(f"the server closed the connection on request {code}")
            for answer in reader.feed(data):
                return answer


def _connected(address: str) -> socket.socket:
    host, _, port = address.rpartition(":")
    return socket.create_connection((host, int(port)), ANSWER_S)


def produce(nameserver: str, messages: int) -> tuple[int, float]:
    """Run the reference's producer; return the acknowledged messages, and the sends per second.

    Sends fail when its 64 threads start on a busy machine. Raises ReferenceMissing.
    """
    classes = f"{examples()}/*:{jars()}/*"
    with tempfile.TemporaryDirectory(prefix="cometmq-producer-") as home:
        done = subprocess.run(
            [
                *(*SMALL_JAVA, f"-Duser.home={home}", "-cp", classes, PRODUCER),
                *("-n", nameserver, "-t", TOPIC, "-w", str(THREADS), "-s", str(BODY_BYTES)),
                *("-q", str(messages)),
            ],
            capture_output=True,
            text=True,
            timeout=PRODUCER_S,
            stdin=subprocess.DEVNULL,
            check=False,
        )
    found = re.search(
        r"Complete.*Send Total: (\d+).*Send TPS: (\d+).*Send Failed: (\d+).*Failed: (\d+)",
        done.stdout,
    )
    if found is None:
        raise RuntimeError(f"the producer failed: {(done.stdout + done.stderr)[-800:]}")
    total, rate, failed, refused = map(int, found.groups())
    return total - failed - refused, float(rate)


def measured(nameserver: str, pid: int, messages: int) -> Figures:
    """Measure one server, after a run of the producer that warms it."""
    warm, _ = produce(nameserver, messages)
    before = cpu_seconds(pid)
    sent, rate = produce(nameserver, messages)
    sending_s = cpu_seconds(pid) - before
    puller = Puller(nameserver)
    puller.pull_all()
    before = cpu_seconds(pid)
    pulled = puller.pull_all()
    reading_s = cpu_seconds(pid) - before
    if pulled < warm + sent:
        raise RuntimeError(f"{pulled} messages were pulled, but {warm + sent} were acknowledged")
    return Figures(rate, sending_s / sent * 1e6, reading_s / pulled * 1e6)


def ours(messages: int) -> Figures:
    """Measure `up --single`."""
    with temporary("--single", *ASYNC, "--remoting") as cluster:
        node = prepared(cluster).node("master")
        return measured(f"127.0.0.1:{node.ports['namesrv_remoting']}", node.pid, messages)


def reference(messages: int) -> Figures:
    """Measure the reference. Raises ReferenceMissing."""
    with running(TOPIC, GROUP) as server:
        return measured(server.nameserver, server.pid, messages)


def rows_of(own: Figures, other: Figures | None, why_not: str) -> list[Row]:
    """Compare with the reference and the targets."""

    def row(name: str, figure: str, unit: str) -> Row:
        mine = float(getattr(own, figure))
        if other is None:
            return Row(f"remoting: {name}", mine, unit, why_not)
        theirs = float(getattr(other, figure))
        bound = f"the reference {theirs:.1f} {unit}"
        return Row(f"remoting: {name}", mine, unit, bound, mine / theirs)

    send = row(f"send {BODY_BYTES} bytes, {THREADS} threads", "send_us", "us CPU")
    pull = row(f"pull of {PULLED}", "pull_us", "us CPU")
    met = None if send.ratio is None else send.ratio <= SHARE
    return [
        replace(send, target=f"at most {SHARE} of the reference", met=met),
        row("rate of these sends", "messages_per_s", "/s"),
        replace(pull, target=f"at most {PULL_US:g} us", met=own.pull_us <= PULL_US),
    ]


def measure(messages: int, with_reference: bool) -> list[Row]:
    """Return every row of this module."""
    own = ours(messages)
    if not with_reference:
        return rows_of(own, None, "the reference was not asked for")
    try:
        return rows_of(own, reference(messages), "")
    except ReferenceMissing as missing:
        return rows_of(own, None, str(missing))


def main() -> None:
    """Run from the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--messages", type=int, default=150_000)
    parser.add_argument("--without-reference", action="store_true")
    options = parser.parse_args()
    show(measure(options.messages, not options.without_reference))


if __name__ == "__main__":
    main()
