"""`cometmq proxy`: an access point without a store, in front of any number of broker groups.

Settings are those of `broker/proxy/base/config.py` and of the door, as flags, `COMETMQ_*` variables
or keys of a file. The ready file has the form of that of `cometmq up`: `endpoints` and one process.
"""

import json
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ...operations import private_file
from ...operations.errors import CliError
from ..config.sources import broker_owners, proxy_owners
from .command import Process, process_options, settings_options
from .console_config import ConsoleConfig

if TYPE_CHECKING:
    from ...broker.proxy.server import ProxyBound


@click.command()
@click.option(
    "--ready-file",
    type=click.Path(path_type=Path, dir_okay=False),
    help="JSON file with the endpoint and the process, written when the proxy is serving.",
)
@process_options
@settings_options(proxy_owners())
def proxy(ready_file: Path | None, **arguments: Any) -> None:
    """Run a proxy: one port for all brokers of a cluster.

    \b
    cometmq proxy -c proxy.conf
    """
    process = Process("proxy", arguments)
    process.run(lambda one: _Proxy(one, ready_file), ("broker.proxy.server",))


class _Proxy:
    """The proxy as a `process.Server`."""

    def __init__(self, process: Process, ready_file: Path | None) -> None:
        from ...broker.proxy.base.config import ProxyConfig
        from ...broker.proxy.server import ProxyServer
        from ...front.config import DoorConfig
        from ...nodes.node_links import NodeLinks
        from ...nodes.tls_config import TlsConfig
        from .console_process import ConsoleProcess

        loaded = process.load(proxy_owners(), broker_owners(), process.file)
        self._ready_file = ready_file
        self._console = ConsoleProcess(loaded.config(ConsoleConfig))
        config = loaded.config(ProxyConfig)
        links = NodeLinks(config.cluster_token, loaded.config(TlsConfig))
        self._server = ProxyServer(config, loaded.config(DoorConfig), links=links)

    async def start(self) -> Mapping[str, Any]:
        bound = await self._server.start()
        self._console.start(bound.client)
        if self._ready_file is not None:
            _write_ready(self._ready_file, bound)
        classic = {"remoting": bound.remoting} if bound.remoting else {}
        return {"client": bound.client, "metrics": bound.metrics, "door": bound.door, **classic}

    async def stop(self, grace_s: float) -> None:
        await self._console.stop()
        await self._server.stop(grace_s)

    def state(self) -> Mapping[str, Any] | None:
        return None


def _write_ready(file: Path, bound: "ProxyBound") -> None:
    """Replace the file atomically. Raises CliError."""
    ports = {
        name: int(text.rpartition(":")[2])
        for name, text in (
            ("client", bound.client),
            ("metrics", bound.metrics),
            ("remoting", bound.remoting),
        )
        if text
    }
    one = {
        "name": "proxy",
        "role": "proxy",
        "pid": os.getpid(),
        "ports": ports,
        "data": "",
        "command": [sys.executable, "-P", "-m", "cometmq.cli.main", *sys.argv[1:]],
    }
    document = {"endpoints": bound.client, "processes": [one]}
    try:
        private_file.replace(file, json.dumps(document, indent=2) + "\n")
    except OSError as error:
        raise CliError(f"Cannot write the ready file {file}: {error.strerror}.") from None
