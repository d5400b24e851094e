"""`cometmq ha exited`: reports that this host's broker process has ended, for a supervisor.

For systemd: `ExecStopPost=cometmq ha exited -c /etc/cometmq/broker.conf`. The command takes the
lock of the store directory first. So it reports only an incarnation whose process has certainly
ended, and the controller need not wait for its lease (docs/design/replication.md).
"""

import fcntl
import os
from contextlib import suppress
from pathlib import Path

from ...operations.errors import CliError, Exit
from ...operations.links import CHANNEL_OPTIONS
from ...proto import paths, v1
from ..config.loader import load
from ..config.sources import broker_owners, namesrv_owners
from .replicas import CALL_S, Nameservers


def report_exit(file: Path | None) -> v1.ReplicaIdentity:
    """Report the exit of the broker of this configuration to every nameserver; return its identity.

    Raises CliError while the process runs, or when the store was never started.
    """
    import grpc

    from ...broker.base.config import BrokerConfig
    from ...ha.config import HaConfig
    from ...ha.state.replica_meta import META_NAME
    from ...ha.state.slots import SlotFile
    from ...nodes.node_links import NodeLinks
    from ...nodes.tls_config import TlsConfig
    from ...store.config.store_config import StoreConfig

    loaded = load(broker_owners(), file=file, elsewhere=namesrv_owners())
    root = loaded.config(StoreConfig).root
    state = SlotFile(root / "ha" / META_NAME, durable=False).load()
    if state is None:
        raise CliError(f"No broker has run with the store {root}.", Exit.NOT_FOUND)
    _check_ended(root)
    identity = v1.ReplicaIdentity(
        cluster=state["cluster"],
        group=state["group"],
        broker_id=state["broker_id"],
        replica_uuid=state["replica_uuid"],
        incarnation=state["incarnation"],
    )
    status = os.environ.get("EXIT_STATUS", "") or "reported by the supervisor"
    request = v1.ProcessExitedRequest(replica=identity, status=status)
    links = NodeLinks(loaded.config(HaConfig).cluster_token, loaded.config(TlsConfig))
    for address in Nameservers(loaded.config(BrokerConfig).namesrv_addr).addresses:
        with links.blocking_channel(address, CHANNEL_OPTIONS) as channel, suppress(grpc.RpcError):
            call = channel.unary_unary(paths.PROCESS_EXITED)
            raw = request.SerializeToString()
            call(raw, timeout=CALL_S, metadata=links.metadata(address))
    return identity


def _check_ended(root: Path) -> None:
    """Raise CliError while a process holds the lock of the store."""
    descriptor = os.open(root / "lock", os.O_RDWR)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise CliError(f"The broker of {root} still runs: nothing was reported.") from None
    finally:
        os.close(descriptor)
