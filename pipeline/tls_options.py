"""Options of source and sink for TLS. Files are read on the driver; tasks get their contents."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Final

from ..client.transport.tls import Tls
from .errors import OptionError

TLS_OPTIONS: Final = {
    "tls": "true: connect with TLS",
    "tlsCa": "with tls: file of certificate authorities (PEM); default: the system's",
    "tlsCertificate": "with tls: file of a certificate (PEM) for ports that require one",
    "tlsKey": "with tls: file of the key of tlsCertificate (PEM)",
    "tlsServerName": "with tls: name that the server's certificate must have, not the host name",
}


def read_tls(option: Callable[[str], str]) -> Tls | None:
    """Return the TLS settings, None for plaintext; `option` returns a value by name, "" without
    one. Raises OptionError."""
    switch = option("tls").lower()
    if switch not in ("", "true", "false"):
        raise OptionError(f"tls must be true or false, not {switch!r}.")
    if switch != "true":
        for name in TLS_OPTIONS:
            if name != "tls" and option(name):
                raise OptionError(f"{name} requires tls=true.")
        return None
    roots, certificate, key = (
        _content(name, option(name)) for name in ("tlsCa", "tlsCertificate", "tlsKey")
    )
    try:
        return Tls(roots, certificate, key, option("tlsServerName"))
    except ValueError:
        raise OptionError("Set both tlsCertificate and tlsKey, or neither.") from None


def _content(name: str, path: str) -> bytes:
    try:
        return Path(path).read_bytes() if path else b""
    except OSError as error:
        raise OptionError(f"{name}: cannot read {path}: {error.strerror}.") from None
