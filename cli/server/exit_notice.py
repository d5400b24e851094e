"""Notice to the group controller that a broker's process has ended, so that it elects at once.

The supervisor detects the exit and writes it to the nameserver's process, which calls its own port;
the supervisor itself imports no gRPC (docs/formats/ha.md, sections 6.4 and 6.8 R3).
"""

import logging
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ...nodes.node_links import NodeLinks

logger = logging.getLogger(__name__)

_TIMEOUT_S = 2.0


async def report_exit(address: str, links: "NodeLinks", event: Mapping[str, Any]) -> None:
    """Report `{"exited": {...replica...}, "status": "signal 9"}` to the controller at `address`.

    A failure is only logged: the election then waits for the end of the lease.
    """
    import grpc.aio

    from ...proto import paths, v1

    replica = event["exited"]
    request = v1.ProcessExitedRequest(
        replica=v1.ReplicaIdentity(
            cluster=replica["cluster"],
            group=replica["group"],
            broker_id=replica["broker_id"],
            incarnation=replica["incarnation"],
        ),
        status=str(event.get("status", "")),
    )
    async with links.channel(address) as channel:
        call = channel.unary_unary(paths.PROCESS_EXITED)
        try:
            await call(
                request.SerializeToString(), metadata=links.metadata(address), timeout=_TIMEOUT_S
            )
        except grpc.aio.AioRpcError as error:
            # A nameserver that is not a controller does not have the method.
            logger.info("exit_notice.failed code=%s group=%s", error.code().name, replica["group"])
        else:
            logger.info("exit_notice.sent group=%s id=%d", replica["group"], replica["broker_id"])
