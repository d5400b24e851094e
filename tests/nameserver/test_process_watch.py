"""A nameserver reports the exit of a process on its own host, and of no other process."""

import asyncio
import signal
import sys
from asyncio.subprocess import Process

import pytest

from cometmq.ha.state.host_process import started_ticks, this_process
from cometmq.nameserver.process_watch import ProcessWatch
from cometmq.proto import v1

pytestmark = pytest.mark.skipif(
    sys.platform != "linux", reason="pid file descriptors are a feature of Linux"
)

REPLICA = v1.ReplicaIdentity(cluster="c", group="g", broker_id=1, replica_uuid="u", incarnation=4)


async def child() -> tuple[Process, v1.HostProcess]:
    """A sleeping child process and its description."""
    process = await asyncio.create_subprocess_exec("sleep", "60")
    here = this_process()
    assert here is not None
    ticks = started_ticks(process.pid)
    assert ticks is not None
    described = v1.HostProcess(
        boot_id=here.boot_id,
        pid_namespace=here.pid_namespace,
        pid=process.pid,
        started_ticks=ticks,
    )
    return process, described


async def test_the_exit_is_reported_with_the_newest_incarnation() -> None:
    exits: asyncio.Queue[v1.ReplicaIdentity] = asyncio.Queue()
    watch = ProcessWatch(exits.put_nowait)
    process, described = await child()
    watch.heartbeat(REPLICA, described)
    later = v1.ReplicaIdentity()
    later.CopyFrom(REPLICA)
    later.incarnation = 5
    watch.heartbeat(later, described)
    watch.heartbeat(later, described)
    assert exits.empty()
    process.send_signal(signal.SIGKILL)
    await process.wait()
    async with asyncio.timeout(10):
        assert await exits.get() == later
    watch.heartbeat(later, described)  # a heartbeat that was in flight
    await asyncio.sleep(0.05)
    assert exits.empty()
    watch.close()


@pytest.mark.parametrize("field", ["boot_id", "pid_namespace", "started_ticks"])
async def test_a_process_of_another_host_or_a_reused_pid_is_not_watched(field: str) -> None:
    exits: list[v1.ReplicaIdentity] = []
    watch = ProcessWatch(exits.append)
    process, described = await child()
    setattr(described, field, "other" if field == "boot_id" else getattr(described, field) + 1)
    watch.heartbeat(REPLICA, described)
    process.kill()
    await process.wait()
    await asyncio.sleep(0.1)
    assert exits == []
    watch.close()
