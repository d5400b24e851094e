"""`cometmq.v1.Admin`, quotas: set, delete, list.

A change is in the replicated metadata log before it is answered. A subject need not exist: the
quota applies as soon as it does.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec.structs import replace

from ...auth.quota import LIMITS, Quota, parse_subject
from ...proto import v1, v2
from ...proto.errors import WireError
from ..metadata.codec import quota_message

if TYPE_CHECKING:
    import asyncio

    from ...front.context import RequestContext
    from ..metadata.changes import MetadataChanges
    from ..metadata.tables import Metadata

#: All quotas are in memory and in every metadata snapshot.
QUOTAS_MAX = 10_000


class QuotaAdmin:
    """Handlers for quotas."""

    def __init__(self, *, metadata: Metadata, changes: MetadataChanges) -> None:
        self._metadata = metadata
        self._changes = changes

    def put(
        self, request: v1.PutQuotaRequest, ctx: RequestContext
    ) -> asyncio.Future[v1.QuotaResponse]:
        """Create a quota, or change the given limits."""
        subject = _subject(request.subject)
        known = self._metadata.quotas.get(subject)
        if known is None and len(self._metadata.quotas) >= QUOTAS_MAX:
            raise WireError(v2.FORBIDDEN, f"there are {QUOTAS_MAX} quotas already")
        given = {field.name: value for field, value in request.ListFields() if field.name in LIMITS}
        quota = replace(known or Quota(subject), **given)
        if not any(getattr(quota, name) for name in LIMITS):
            raise WireError(
                v2.BAD_REQUEST, "a quota needs a limit above 0; to remove all of them, delete it"
            )
        self._changes.check_writable()
        return self._changes.when_durable(self._changes.log.write_quota(quota), _answer(quota))

    def delete(
        self, request: v1.DeleteQuotaRequest, ctx: RequestContext
    ) -> asyncio.Future[v1.QuotaResponse]:
        """Delete a quota."""
        subject = _subject(request.subject)
        quota = self._metadata.quotas.get(subject)
        if quota is None:
            raise WireError(v2.NOT_FOUND, f"{subject} has no quota")
        self._changes.check_writable()
        return self._changes.when_durable(self._changes.log.delete_quota(subject), _answer(quota))

    def list_all(self, request: v1.ListQuotasRequest, ctx: RequestContext) -> v1.ListQuotasResponse:
        """Return all quotas by subject."""
        quotas = sorted(self._metadata.quotas.values(), key=lambda quota: quota.subject)
        return v1.ListQuotasResponse(code=v2.OK, message="OK", quotas=map(quota_message, quotas))


def _answer(quota: Quota) -> v1.QuotaResponse:
    return v1.QuotaResponse(code=v2.OK, message="OK", quota=quota_message(quota))


def _subject(text: str) -> str:
    """Return the subject of a request. Raises WireError."""
    try:
        return parse_subject(text)
    except ValueError as error:
        raise WireError(v2.BAD_REQUEST, str(error)) from None
