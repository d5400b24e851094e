"""Archive gate: reads and sets the archive watermark of a broker.

With `archiveGate=true` the broker's retention keeps every segment that ends above the watermark. If
the disk is too full it deletes them anyway and logs `archive.overridden`. Only ranges that
`checking.py` found correct move the watermark.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import grpc

from ...client.clock import local_date_time
from ...client.identity import client_id
from ...client.transport.credentials import Caller, Credentials
from ...proto import paths, v1, v2
from ..errors import PipelineError

_TIMEOUT_S = 15.0


@dataclass(frozen=True, slots=True)
class Mark:
    """Archive watermark and log bounds of a broker; `gate`: whether retention honours it."""

    watermark: int
    gate: bool
    log_start: int
    log_end: int


def get_watermark(endpoint: str, keys: Credentials | None = None) -> Mark:
    """Return the archive watermark of the broker at HOST:PORT. Raises PipelineError."""
    request = v1.GetArchiveWatermarkRequest()
    path, answer = paths.GET_ARCHIVE_WATERMARK, v1.GetArchiveWatermarkResponse
    found = _call(endpoint, path, request, answer, keys)
    return Mark(found.watermark, found.gate, found.log_start, found.log_end)


def set_watermark(endpoint: str, watermark: int, keys: Credentials | None = None) -> bool:
    """Set the broker's archive watermark; durable on return. Raises PipelineError.

    Return whether the broker's retention honours the watermark.
    """
    request = v1.SetArchiveWatermarkRequest(watermark=watermark)
    path, answer = paths.SET_ARCHIVE_WATERMARK, v1.SetArchiveWatermarkResponse
    found = _call(endpoint, path, request, answer, keys)
    return bool(found.gate)


def _call(endpoint: str, path: str, request: Any, answer: Any, keys: Credentials | None) -> Any:
    options = (("grpc.enable_http_proxy", 0),)
    with grpc.insecure_channel(endpoint, options=options) as channel:
        method = channel.unary_unary(
            path,
            request_serializer=lambda message: message.SerializeToString(),
            response_deserializer=answer.FromString,
        )
        caller = Caller(client_id(), keys, "", local_date_time)
        try:
            found = method(request, timeout=_TIMEOUT_S, metadata=caller.metadata())
        except grpc.RpcError as error:
            text = f"The broker at {endpoint} did not answer: {error.details()}."
            raise PipelineError(text) from None
    if found.code != v2.OK:
        raise PipelineError(f"The broker at {endpoint} refused: {found.message}.")
    return found
