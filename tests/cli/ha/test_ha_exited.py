"""`cometmq ha exited` reports an ended broker, and never one that runs."""

import asyncio
import fcntl
import json
from pathlib import Path
from typing import Any

from click.testing import CliRunner

from cometmq.cli.ha.command import ha
from cometmq.ha.state.replica_meta import Identity, start_replica
from cometmq.operations.errors import CliError, Exit
from cometmq.tests.nameserver.fake_broker import FakeBroker, controller, joined, until


def invoke(conf: Path) -> Any:
    """Return the document, or the CliError."""
    done = CliRunner().invoke(ha, ["exited", "-c", str(conf), "-o", "json"], standalone_mode=False)
    return done.exception if done.exception is not None else json.loads(done.stdout)


def broker(root: Path, namesrv: str) -> tuple[Path, str]:
    """A store that ran once as broker 0; returns its configuration and its replica uuid."""
    conf = root / "broker.conf"
    conf.write_text(
        f"namesrvAddr={namesrv}\nstorePathRootDir={root}/store\nclusterToken=the-token-of-the-tests\n"
    )
    (root / "store").mkdir()
    (root / "store" / "lock").write_bytes(b"lock")
    meta = start_replica(root / "store" / "ha", Identity("c", "g", 0))
    meta.close()
    return conf, meta.replica_uuid


async def test_an_ended_leader_is_replaced_at_once(tmp_path: Path) -> None:
    async with controller(tmp_path / "ns", controller_lease_ms=60_000) as link:
        conf, uuid = broker(tmp_path, link.address)
        leader, follower = FakeBroker(0, [link], uuid=uuid), FakeBroker(1, [link])
        leader.start()
        await until(lambda: leader.leads)
        follower.start()
        await until(lambda: follower.state.version > 0)
        await joined(leader, follower, link)
        await leader.stop()
        found = await asyncio.to_thread(invoke, conf)
        assert found == {"group": "g", "broker_id": 0, "incarnation": 1}
        await until(lambda: follower.leads)
        await follower.stop()


def test_a_running_broker_is_not_reported(tmp_path: Path) -> None:
    conf, _ = broker(tmp_path, "127.0.0.1:1")
    with (tmp_path / "store" / "lock").open("r+b") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        found = invoke(conf)
    assert isinstance(found, CliError)
    assert "still runs" in str(found)


def test_a_store_that_never_ran_is_refused(tmp_path: Path) -> None:
    conf = tmp_path / "broker.conf"
    conf.write_text(f"storePathRootDir={tmp_path}/none\n")
    found = invoke(conf)
    assert isinstance(found, CliError)
    assert found.code == Exit.NOT_FOUND
