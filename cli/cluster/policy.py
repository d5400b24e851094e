"""Change of a running group's replication, for `cometmq up --replication`."""

import asyncio
import sys
import time
from pathlib import Path

from ...operations.errors import CliError

# The controller refuses a change until the leader's heartbeat has arrived: retry for this long.
_WAIT_S = 15.0
_RETRY_S = 0.5


async def set_replication(data: Path, group: str, replication: str) -> None:
    """Set the replication of a group of the cluster in `data` to sync or async. Raises CliError."""
    command = [sys.executable, "-P", "-m", "cometmq.cli.main", "ha", "policy", f"--{replication}"]
    end_s = time.monotonic() + _WAIT_S
    while True:
        process = await asyncio.create_subprocess_exec(
            *command,
            "--data",
            str(data),
            "--group",
            group,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.DEVNULL,
            stderr=asyncio.subprocess.PIPE,
        )
        try:
            _, errors = await process.communicate()
        except asyncio.CancelledError:
            process.kill()
            raise
        if process.returncode == 0:
            return
        if time.monotonic() > end_s:
            raise CliError(
                f"Cannot change the replication of {group} to {replication}: "
                f"{errors.decode(errors='replace').strip().removeprefix('cometmq: ')} Start without"
                f" --replication, then run `cometmq ha policy --{replication} --group {group}`."
            )
        await asyncio.sleep(_RETRY_S)
