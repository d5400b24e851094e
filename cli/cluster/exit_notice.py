"""Tells a group controller that a broker's process has ended: proof of death, so that it elects at once.

The supervisor sees the end first and passes it to the nameserver's process, which asks its own port: the
supervisor itself stays small and speaks no gRPC (HA, sections 6.4 and 6.8 R3).
"""

import logging
from collections.abc import Mapping
from typing import Any

logger = logging.getLogger(__name__)

_TIMEOUT_S = 2.0


async def tell_controller(address: str, token: str, news: Mapping[str, Any]) -> None:
    """`news` is `{"exited": {...replica...}, "status": "signal 9"}`; what fails is logged: the lease ends too."""
    import grpc
    import grpc.aio

    from ...front.context import TOKEN
    from ...proto import paths, v1

    replica = news["exited"]
    request = v1.ProcessExitedRequest(
        replica=v1.ReplicaIdentity(
            cluster=replica["cluster"],
            group=replica["group"],
            broker_id=replica["broker_id"],
            incarnation=replica["incarnation"],
        ),
        status=str(news.get("status", "")),
    )
    async with grpc.aio.insecure_channel(address) as channel:
        call = channel.unary_unary(paths.PROCESS_EXITED)
        try:
            await call(request.SerializeToString(), metadata=((TOKEN, token),), timeout=_TIMEOUT_S)
        except grpc.aio.AioRpcError as error:
            # A nameserver that is no controller does not know the method.
            logger.info("exited.not_told code=%s group=%s", error.code().name, replica["group"])
        else:
            logger.info("exited.told group=%s id=%d", replica["group"], replica["broker_id"])
