"""Files that settings name: who else reads their secrets, and when certificates expire."""

from collections.abc import Iterator, Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path

from .finding import Finding

_SECRETS = ("tlsKey", "frontTlsKey", "authenticationKeyFile", "metricsBearerTokenFile")
_CERTIFICATES = ("tlsCertificate", "tlsCa", "frontTlsCertificate", "frontTlsClientCa")
#: Time before its end at which a certificate should be renewed.
_SOON = timedelta(days=30)


def of_files(values: Mapping[str, str], now: datetime) -> Iterator[Finding]:
    """Yield findings about the files on this machine that settings name."""
    for key in _SECRETS:
        if values.get(key):
            yield readable(key, Path(values[key]))
    store = Path(values.get("storePathRootDir", "") or "/nonexistent").expanduser()
    if store.is_dir():
        yield readable("key of the secret keys", store / "config" / "auth.key")
        yield _store(store)
    for key in _CERTIFICATES:
        if values.get(key):
            yield from _certificates(key, Path(values[key]), now)
    if values.get("tlsCrl"):
        yield _lists(Path(values["tlsCrl"]), now)


def readable(what: str, file: Path) -> Finding:
    """Return the finding about a file with a secret; good if it does not exist here."""
    try:
        mode = file.stat().st_mode & 0o777
    except OSError:
        return Finding(what, f"{file}: not on this machine")
    if mode & 0o077:
        found = f"{file}: other users may read it (mode {mode:04o})"
        return Finding(what, found, "bad", f"chmod 600 {file}")
    return Finding(what, f"{file}: mode {mode:04o}")


def _store(store: Path) -> Finding:
    mode = store.stat().st_mode & 0o777
    if mode & 0o005:
        found = f"{store}: other users may read messages (mode {mode:04o})"
        return Finding("store", found, "note", f"chmod 700 {store}")
    return Finding("store", f"{store}: mode {mode:04o}")


def _certificates(key: str, file: Path, now: datetime) -> Iterator[Finding]:
    from cryptography import x509

    try:
        found = x509.load_pem_x509_certificates(file.read_bytes())
    except FileNotFoundError:
        yield Finding(key, f"{file}: not on this machine")
        return
    except (OSError, ValueError) as error:
        yield Finding(key, f"{file}: {error}", "bad", f"{key}=FILE with a certificate (PEM)")
        return
    ends = min(each.not_valid_after_utc for each in found).astimezone(UTC)
    text = f"{file}: valid until {ends:%Y-%m-%d}"
    advice = "renew it with its authority (cometmq auth dev-ca, if that made it)"
    if ends <= now:
        yield Finding(key, f"{file}: expired on {ends:%Y-%m-%d}", "bad", advice)
    elif ends - now < _SOON:
        yield Finding(key, text, "note", advice)
    else:
        yield Finding(key, text)


def _lists(file: Path, now: datetime) -> Finding:
    """Return the finding about revocation lists, which count also after their end."""
    from cryptography import x509

    begin = b"-----BEGIN X509 CRL-----"
    try:
        parts = file.read_bytes().split(begin)[1:]
        ends = [x509.load_pem_x509_crl(begin + part).next_update_utc for part in parts]
    except (OSError, ValueError) as error:
        return Finding("tlsCrl", f"{file}: {error}", "bad", "tlsCrl=FILE with lists (PEM)")
    if any(end is not None and end <= now for end in ends):
        advice = "fetch the present lists of the authority"
        return Finding("tlsCrl", f"{file}: a newer list is due", "note", advice)
    return Finding("tlsCrl", f"{file}: {len(ends)} lists")
