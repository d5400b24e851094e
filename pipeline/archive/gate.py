"""The delete gate: telling the broker how far its log is archived, once that was checked.

With `archiveGate=true` the broker's retention keeps every segment whose end is above the watermark,
unless the disk is too full: then it deletes, and logs `archive.overridden`. The watermark only follows
what `checking.py` found right. (DESIGN, section 2: Control)
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import grpc

from ...client.clock import local_date_time
from ...client.identity import client_id
from ...client.transport.credentials import Caller
from ...proto import paths, v1, v2
from ..errors import PipelineError

_TIMEOUT_S = 15.0


@dataclass(frozen=True, slots=True)
class Mark:
    """What the broker says of its log."""

    watermark: int
    gate: bool
    log_start: int
    log_end: int


def get_watermark(endpoint: str) -> Mark:
    """How far the broker at HOST:PORT believes to be archived. Raises PipelineError."""
    request = v1.GetArchiveWatermarkRequest()
    path, answer = paths.GET_ARCHIVE_WATERMARK, v1.GetArchiveWatermarkResponse
    found = _ask(endpoint, path, request, answer)
    return Mark(found.watermark, found.gate, found.log_start, found.log_end)


def set_watermark(endpoint: str, watermark: int) -> bool:
    """Everything below is archived; durable at the broker when this returns. Returns whether its
    retention looks at it. Raises PipelineError."""
    request = v1.SetArchiveWatermarkRequest(watermark=watermark)
    found = _ask(endpoint, paths.SET_ARCHIVE_WATERMARK, request, v1.SetArchiveWatermarkResponse)
    return bool(found.gate)


def _ask(endpoint: str, path: str, request: Any, answer: Any) -> Any:
    options = (("grpc.enable_http_proxy", 0),)
    with grpc.insecure_channel(endpoint, options=options) as channel:
        method = channel.unary_unary(
            path,
            request_serializer=lambda message: message.SerializeToString(),
            response_deserializer=answer.FromString,
        )
        caller = Caller(client_id(), None, "", local_date_time)
        try:
            found = method(request, timeout=_TIMEOUT_S, metadata=caller.metadata())
        except grpc.RpcError as error:
            text = f"The broker at {endpoint} did not answer: {error.details()}."
            raise PipelineError(text) from None
    if found.code != v2.OK:
        raise PipelineError(f"The broker at {endpoint} refused: {found.message}.")
    return found
