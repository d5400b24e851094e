"""Apache's mqadmin 5.5.0 with a key in its `conf/tools.yml`, against a broker that checks users."""

from __future__ import annotations

from pathlib import Path

import pytest

from cometmq.auth.model import User
from cometmq.tests.broker.live import running, settings
from cometmq.tests.interop.remoting.mqadmin_commands import Case
from cometmq.tests.interop.remoting.test_mqadmin import nameserver, started

CREATE = ("updateTopic", ("-b", "{broker}", "-t", "signed-topic", "-r", "2", "-w", "2"))


def write_key(home: Path, secret: str) -> str:
    """Write the file that mqadmin reads its key from; return the option that names its folder."""
    (home / "conf").mkdir(parents=True)
    (home / "conf" / "tools.yml").write_text(f"accessKey: admin\nsecretKey: {secret}\n")
    return f"-Drocketmq.home.dir={home}"


@pytest.mark.timeout(600)  # the first run fetches mqadmin
async def test_mqadmin_signs_its_requests(tmp_path: Path) -> None:
    right, wrong = tmp_path / "right", tmp_path / "wrong"
    async with nameserver() as (address, namesrv):
        chosen = settings(
            tmp_path / "store",
            remoting_listen_port=-1,
            namesrv_addr=address,
            authentication_enabled=True,
            authorization_enabled=True,
        )
        async with running(chosen) as live:
            sealed = live.node.keys.key.seal("admin", "the-secret")
            live.node.metadata.put_user(User("admin", sealed, is_super=True))
            values = {"broker": live.bound.remoting}
            async with started(namesrv, wrong, write_key(wrong, "another")) as mqadmin:
                output = await mqadmin.run(Case(*CREATE, "CODE: 16"), values)
                assert "CODE: 16" in output, output
                assert live.node.metadata.topic("signed-topic") is None
            async with started(namesrv, right, write_key(right, "the-secret")) as mqadmin:
                output = await mqadmin.run(Case(*CREATE, "success"), values)
                assert "success" in output, output
                assert live.node.metadata.topic("signed-topic") is not None
                listing = Case("listUser", ("-b", "{broker}"), "admin")
                output = await mqadmin.run(listing, values)
                assert "admin" in output, output
