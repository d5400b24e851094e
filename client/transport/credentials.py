"""Who is calling: metadata of every call, signed when there is an access key.

Headers and signature of the gRPC API, sections 2.1 and 2.3: HMAC-SHA1 over the exact date-time text.
The pairs of one second are made once: only the request id differs from call to call.
"""

from __future__ import annotations

import hmac
import itertools
from dataclasses import dataclass

from ..clock import local_date_time

_VERSION = "5.1.2"
"""The protocol's generation that we speak; servers compare it as text."""

Metadata = tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class Credentials:
    """An access key and its secret; `session_token` for temporary ones."""

    access_key: str
    secret_key: str
    session_token: str = ""

    def __repr__(self) -> str:
        return f"Credentials({self.access_key!r}, ...)"


class Caller:
    """Makes the metadata of one client's calls."""

    def __init__(self, client_id: str, credentials: Credentials | None, namespace: str) -> None:
        self.client_id = client_id
        self._credentials = credentials
        self._fixed: Metadata = (
            ("x-mq-client-id", client_id),
            ("x-mq-language", "PYTHON"),
            ("x-mq-protocol", "v2"),
            ("x-mq-client-version", _VERSION),
            ("x-mq-namespace", namespace),
        )
        if credentials is not None and credentials.session_token:
            self._fixed += (("x-mq-session-token", credentials.session_token),)
        self._second = ""
        self._of_second: Metadata = ()
        self._requests = itertools.count(1)

    def metadata(self) -> Metadata:
        """Of the next call."""
        now = local_date_time()
        if now != self._second:
            self._second = now
            self._of_second = (*self._fixed, ("x-mq-date-time", now), *self._signature(now))
        request_id = f"{self.client_id}-{next(self._requests)}"
        return (*self._of_second, ("x-mq-request-id", request_id))

    def _signature(self, text: str) -> Metadata:
        known = self._credentials
        if known is None:
            return ()
        signature = hmac.digest(known.secret_key.encode(), text.encode(), "sha1").hex().upper()
        return (
            (
                "authorization",
                f"MQv2-HMAC-SHA1 Credential={known.access_key}, SignedHeaders=x-mq-date-time, "
                f"Signature={signature}",
            ),
        )
