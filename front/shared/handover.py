"""Connections that arrive at the port of a door and do not speak gRPC.

The door hands them over; the server of the other protocol receives them once it is ready. Before,
and after it has stopped, they are closed.
"""

from __future__ import annotations

import socket
import ssl
from collections.abc import Callable

#: Receives an open socket, the HOST:PORT of its peer, the context of a handshake to come (None:
#: plaintext, or TLS that is decrypted already), and the verified certificate (DER) of a handshake
#: that is done (empty: none). Owns the socket.
Receiver = Callable[[socket.socket, str, ssl.SSLContext | None, bytes], None]


class Handover:
    """Passes connections from a door to one receiver. Used on the event loop."""

    def __init__(self) -> None:
        self._receive: Receiver | None = None

    def open(self, receive: Receiver) -> None:
        """Pass connections to `receive` from now on."""
        self._receive = receive

    def close(self) -> None:
        """Close further connections."""
        self._receive = None

    def pass_on(
        self,
        connection: socket.socket,
        peer: str,
        context: ssl.SSLContext | None = None,
        certificate: bytes = b"",
    ) -> None:
        """Hand a connection over; closes it without a receiver."""
        if self._receive is None:
            connection.close()
            return
        connection.setblocking(False)
        self._receive(connection, peer, context, certificate)
