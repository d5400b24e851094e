"""What the settings of a process leave open, for `cometmq doctor security`. Pure.

Each check returns one finding, with the setting or the command that closes it. A process that
listens on loopback only is reachable by the users of its machine: what is bad elsewhere is a note.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from ...nodes.addresses import is_loopback
from .finding import Finding

#: Users that RocketMQ's and CometMQ's examples name.
_EXAMPLE_USERS = frozenset(("rocketmq", "rocketmq2", "admin", "root", "test"))


@dataclass(frozen=True, slots=True)
class Settings:
    """The settings of one process as text, by key; a secret that is set has any text."""

    #: broker, namesrv or proxy.
    process: str
    values: Mapping[str, str]

    def __getitem__(self, key: str) -> str:
        return self.values.get(key, "")

    def on(self, key: str) -> bool:
        """Return whether a setting is true."""
        return self[key] == "true"

    @property
    def exposed(self) -> bool:
        """Other machines reach its ports."""
        return not is_loopback(self["bindAddress"])

    @property
    def verdict(self) -> str:
        """The verdict about what everyone may do who reaches its ports."""
        return "bad" if self.exposed else "note"

    @property
    def enforces_tls(self) -> bool:
        """It accepts no plaintext from clients."""
        return self["tlsMode"] == "enforcing"


def openings(settings: Settings) -> Iterator[Finding]:
    """Yield a finding for each check that concerns the process."""
    yield _listens(settings)
    yield _authentication(settings)
    yield _anonymous(settings)
    yield _tls(settings)
    yield _token(settings)
    yield _client_certificates(settings)
    yield _door(settings)
    yield _metrics(settings)
    if settings.process == "broker":
        yield _authorization(settings)
        yield _clock(settings)
        yield _failures(settings)
        yield _secrets_key(settings)
        yield _first_user(settings)
        yield _audit(settings)
        yield _auto_create(settings)
        yield _test_hooks(settings)
    if settings.process != "namesrv":
        yield _console(settings)
    if settings["remotingListenPort"] not in ("", "0"):
        yield _remoting(settings)


def of_users(users: Mapping[str, bool]) -> Finding:
    """Return the finding about users; the values tell whether a user is of type Super."""
    known = sorted(name for name in users if name.lower() in _EXAMPLE_USERS)
    supers = sum(users.values())
    found = f"{len(users)} users, {supers} of type Super"
    if known:
        names = ", ".join(known)
        advice = f"cometmq user rotate {known[0]} (if its secret key was chosen, not generated)"
        return Finding("users", f"{found}; names of examples: {names}", "note", advice)
    if not users:
        return Finding("users", "none", "note", "cometmq auth init")
    return Finding("users", found)


def of_quotas(quotas: int) -> Finding:
    """Return the finding about quotas."""
    if quotas:
        return Finding("quotas", f"{quotas}")
    found = "none: a user or a topic may take all of the broker"
    return Finding("quotas", found, "note", "cometmq quota set 'Topic:*' --messages N --bytes N")


def of_kept(kept: Mapping[str, str], values: Mapping[str, str]) -> Iterator[Finding]:
    """Yield a finding for each setting whose file or key set a node cannot read again."""
    for setting, reason in sorted(kept.items()):
        found = f"cannot be read again, the former one is in use: {reason}"
        advice = f"correct {values.get(setting, '')}; the node reads it again by itself"
        yield Finding(f"replacement of {setting}", found, "bad", advice)


def _listens(settings: Settings) -> Finding:
    address = settings["bindAddress"]
    if not settings.exposed:
        return Finding("addresses", f"{address}: this machine only")
    advice = "bindAddress=ADDRESS of a private network, and a firewall for the ports of nodes"
    return Finding("addresses", f"{address}: other machines reach the ports", "note", advice)


def _authentication(settings: Settings) -> Finding:
    if settings.on("authenticationEnabled"):
        return Finding("authentication", "on")
    advice = "authenticationEnabled=true; then cometmq auth init and cometmq user create"
    found = "off: who reaches the port reads and changes everything"
    return Finding("authentication", found, settings.verdict, advice)


def _anonymous(settings: Settings) -> Finding:
    if not settings.on("allowAnonymous"):
        return Finding("allowAnonymous", "false")
    found = "true: a start without authentication is not refused"
    return Finding("allowAnonymous", found, settings.verdict, "allowAnonymous=false")


def _authorization(settings: Settings) -> Finding:
    if settings.on("authorizationEnabled"):
        return Finding("authorization", "on")
    advice = "authorizationEnabled=true; then cometmq acl create --user NAME --resource Topic:NAME"
    found = "off: policies are not checked"
    return Finding("authorization", found, settings.verdict, advice)


def _tls(settings: Settings) -> Finding:
    mode = settings["tlsMode"]
    if settings.enforces_tls:
        return Finding("TLS", "enforcing")
    own = bool(settings["tlsCertificate"] or settings["frontTlsCertificate"])
    if mode == "permissive" and own:
        found = "permissive: plaintext is accepted as well"
        return Finding("TLS", found, "note", "tlsMode=enforcing, when all callers use TLS")
    found = f"{mode}: listeners on the network read messages and repeat signatures"
    advice = "tlsMode=enforcing with tlsCertificate, tlsKey and tlsCa; cometmq auth dev-ca"
    return Finding("TLS", found, settings.verdict, advice)


def _client_certificates(settings: Settings) -> Finding:
    what = "certificates of clients"
    if settings["tlsClientIdentity"] in ("", "none") and not settings["frontTlsClientCa"]:
        return Finding(what, "name no users")
    if settings["tlsCrl"]:
        return Finding(what, "with revocation lists")
    found = "accepted until they expire"
    return Finding(what, found, "note", "tlsCrl=FILE with the lists of the authority")


def _token(settings: Settings) -> Finding:
    if settings["clusterToken"]:
        if settings.on("trustedNetwork") and not settings.enforces_tls:
            found = "sent in plaintext to other machines (trustedNetwork=true)"
            return Finding("clusterToken", found, "note", "tlsMode=enforcing, trustedNetwork=false")
        return Finding("clusterToken", "set")
    advice = "clusterToken from `openssl rand -hex 24`, the same on all nodes"
    found = "none: processes of this machine have the rights of a node"
    return Finding("clusterToken", found, "note", advice)


def _door(settings: Settings) -> Finding:
    if settings["frontDoor"] != "grpcio":
        return Finding("frontDoor", settings["frontDoor"])
    found = "grpcio: no limits by address, and memory that gRPC's core does not limit"
    return Finding("frontDoor", found, "note", "frontDoor=auto with cometmq[native]")


def _metrics(settings: Settings) -> Finding:
    if settings["metricsBearerTokenFile"]:
        return Finding("metrics", "with a token")
    found = "without a token: names of topics, groups and clients"
    verdict = "note" if settings.exposed else "good"
    return Finding("metrics", found, verdict, "metricsBearerTokenFile=FILE")


def _clock(settings: Settings) -> Finding:
    what = "age of signatures"
    skew = settings["authenticationClockSkew"]
    if skew == "0":
        found = "not checked: a captured signature is valid for ever"
        return Finding(what, found, "bad", "authenticationClockSkew=300000")
    if settings.on("authenticationLocalTimes"):
        found = f"{skew} ms, in any time zone: a captured one fits again for 26 hours"
        advice = "authenticationLocalTimes=false, where all clients have the time zone UTC"
        return Finding(what, found, "note", advice)
    return Finding(what, f"{skew} ms")


def _failures(settings: Settings) -> Finding:
    limit = settings["authenticationMaxFailures"]
    if limit != "0":
        return Finding("wrong signatures", f"{limit} a minute from one address")
    found = "any number may be tried"
    return Finding("wrong signatures", found, "note", "authenticationMaxFailures=20")


def _secrets_key(settings: Settings) -> Finding:
    what = "key of the secret keys"
    if settings["authenticationKeyFile"]:
        return Finding(what, "authenticationKeyFile")
    if settings["clusterToken"]:
        found = "derived from clusterToken: who has it and the log has all secret keys"
        return Finding(what, found, "note", "authenticationKeyFile=FILE; then cometmq user rotate")
    return Finding(what, "config/auth.key of this replica")


def _first_user(settings: Settings) -> Finding:
    if not settings["initAuthenticationUser"]:
        return Finding("first user", "not in the settings")
    found = "its secret key is in the settings"
    advice = "remove initAuthenticationUser after the first start; cometmq user rotate NAME"
    return Finding("first user", found, "note", advice)


def _audit(settings: Settings) -> Finding:
    if settings["auditLogFile"] or settings.on("auditTopicEnable"):
        return Finding("audit log", "on")
    advice = "auditLogFile=FILE or auditTopicEnable=true"
    return Finding("audit log", "off: changes and denials leave no trace", "note", advice)


def _auto_create(settings: Settings) -> Finding:
    keys = ("autoCreateTopicEnable", "autoCreateSubscriptionGroup")
    found = [key for key in keys if settings.on(key)]
    if not found:
        return Finding("automatic creation", "off")
    advice = ", ".join(f"{key}=false" for key in found)
    text = "topics or groups are created by any client that may use their names"
    return Finding("automatic creation", text, "note", advice)


def _test_hooks(settings: Settings) -> Finding:
    if not settings.on("testHooks"):
        return Finding("testHooks", "false")
    found = "true: calls move the clock and inject faults"
    return Finding("testHooks", found, "bad", "testHooks=false")


def _console(settings: Settings) -> Finding:
    if not settings.on("console"):
        return Finding("console", "not beside this process")
    found = "no login: users of this machine read with its credentials"
    if settings.on("consoleAllowChanges"):
        found = "no login: users of this machine change the cluster with its credentials"
        return Finding("console", found, "bad", "consoleAllowChanges=false")
    return Finding("console", found, "note", "console=false, or a proxy with a login")


def _remoting(settings: Settings) -> Finding:
    if settings.process == "namesrv":
        found = "answers routes to everyone: names of topics, addresses"
        return Finding("remoting port", found, "note", "remotingListenPort=0")
    if settings.enforces_tls:
        return Finding("remoting port", "TLS")
    found = "a captured signature is valid for ever, also in other requests"
    return Finding("remoting port", found, "note", "tlsMode=enforcing, or remotingListenPort=0")
