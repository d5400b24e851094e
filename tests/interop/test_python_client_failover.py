"""The official Python client and the SDK survive a kill and restart of the master.

The official client sends no settings for minutes after a broken stream
(docs/formats/client-wire.md, section 1, finding 2), so a broker must not need them. Both replicas
are addresses of one endpoint, so reads continue from the slave.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from cometmq.tests.harness.cluster import Cluster, wait_until
from cometmq.tests.harness.official import Official, OfficialError

Start = Callable[[str], Official]
WAIT_S = 60.0


def test_consumers_survive_the_masters_restart(
    new_cluster: Callable[..., Cluster], start: Start
) -> None:
    cluster = new_cluster().wait_in_sync()
    topic, group = cluster.create_topic("survive"), cluster.create_group("survivors")
    client = start(cluster.endpoints)
    client.call("producer", topics=[topic])
    client.call("push", group=group, topics={topic: "*"})
    before = set(client.call("send_many", topic=topic, bodies=[f"{n}" for n in range(20)]))
    wait_until("deliveries before", lambda: before <= pushed(client), WAIT_S)

    cluster.kill9("master")
    cluster.restart("master")
    after = set(client.call("send_many", topic=topic, bodies=[f"{n}" for n in range(20)]))
    wait_until("deliveries after", lambda: after <= pushed(client), WAIT_S)


def test_reads_continue_from_the_slave(new_cluster: Callable[..., Cluster], start: Start) -> None:
    cluster = new_cluster().wait_in_sync()
    topic, group = cluster.create_topic("reads"), cluster.create_group("readers")
    client = start(cluster.endpoints)
    client.call("producer", topics=[topic])
    client.call("simple", group=group, topics={topic: "*"}, await_s=3)
    sent = set(client.call("send_many", topic=topic, bodies=[f"{n}" for n in range(50)]))
    # A follower serves records below its confirm offset, which arrives with the heartbeats
    # (docs/formats/ha.md, section 6.8, R10).
    time.sleep(5)

    cluster.kill9("master")
    got: set[str] = set()

    def read() -> bool:
        try:
            some = [one["id"] for one in client.call("receive")]
            client.call("ack", ids=some)
        except OfficialError as error:
            assert "UNAVAILABLE" in str(error), "only the connection that broke may say so"
            return False
        got.update(some)
        return got >= sent

    wait_until("all of it from the slave", read, WAIT_S)
    assert got == sent

    cluster.restart("master")
    late = client.call("send", topic=topic, body="late")
    wait_until("what the restarted master took", lambda: read() and late in got, WAIT_S)


def pushed(client: Official) -> set[str]:
    return {one["id"] for one in client.call("pushed")}
