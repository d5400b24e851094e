"""Metadata of every call, signed if there is an access key.

Headers and signature: docs/formats/grpc-api.md, sections 2.1 and 2.3 (HMAC-SHA1 over the exact
date-time text). The headers are built once per second; only the request id differs between calls.
"""

from __future__ import annotations

import hmac
import itertools
from collections.abc import Callable
from dataclasses import dataclass

from ... import __version__

#: Protocol version of this client, which servers compare as text, and its name in their lists.
_VERSION = f"5.1.2 (cometmq {__version__})"

Metadata = tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class Credentials:
    """An access key and its secret key; `session_token` for temporary credentials."""

    access_key: str
    secret_key: str
    session_token: str = ""

    def __repr__(self) -> str:
        return f"Credentials({self.access_key!r}, ...)"


class Caller:
    """Builds the metadata of one client's calls."""

    def __init__(
        self,
        client_id: str,
        credentials: Credentials | None,
        namespace: str,
        date_time: Callable[[], str],
    ) -> None:
        """`date_time` returns the text to sign (`client.clock.local_date_time`)."""
        self.client_id = client_id
        self._credentials = credentials
        self._date_time = date_time
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
        """Return the metadata of the next call."""
        now = self._date_time()
        if now != self._second:
            self._second = now
            self._of_second = (*self._fixed, ("x-mq-date-time", now), *self._signature(now))
        request_id = f"{self.client_id}-{next(self._requests)}"
        return (*self._of_second, ("x-mq-request-id", request_id))

    def _signature(self, text: str) -> Metadata:
        keys = self._credentials
        if keys is None:
            return ()
        signature = hmac.digest(keys.secret_key.encode(), text.encode(), "sha1").hex().upper()
        return (
            (
                "authorization",
                f"MQv2-HMAC-SHA1 Credential={keys.access_key}, SignedHeaders=x-mq-date-time, "
                f"Signature={signature}",
            ),
        )
