"""`cometmq doctor security`: what is open has a row with what closes it."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
import trustme
from click.testing import CliRunner

from cometmq.cli.config.loader import schema
from cometmq.cli.config.sources import broker_owners, namesrv_owners, proxy_owners
from cometmq.cli.installation.finding import Finding
from cometmq.cli.installation.openings import Settings, of_quotas, of_users, openings
from cometmq.cli.installation.secret_files import of_files
from cometmq.cli.root import cli
from cometmq.operations.errors import Exit

OWNERS = {"broker": broker_owners, "namesrv": namesrv_owners, "proxy": proxy_owners}
CLOSED = {
    "bindAddress": "127.0.0.1",
    "authenticationEnabled": "true",
    "authorizationEnabled": "true",
    "authenticationLocalTimes": "false",
    "authenticationKeyFile": "/key",
    "tlsMode": "enforcing",
    "clusterToken": "********",
    "auditLogFile": "/audit",
    "autoCreateTopicEnable": "false",
    "autoCreateSubscriptionGroup": "false",
    "remotingListenPort": "0",
}


def found(process: str = "broker", **changed: str) -> dict[str, Finding]:
    """Return the findings of a process by their name; `changed` are settings unlike `CLOSED`."""
    text = {True: "true", False: "false"}
    values = {k: text.get(s.default, str(s.default)) for k, s in schema(OWNERS[process]()).items()}
    values |= {key: value for key, value in (CLOSED | changed).items() if key in values}
    return {each.what: each for each in openings(Settings(process, values))}


@pytest.mark.parametrize("process", OWNERS)
def test_what_is_closed_is_good(process: str) -> None:
    assert {each.verdict for each in found(process).values()} == {"good"}


@pytest.mark.parametrize(
    ("what", "changed", "verdict"),
    [
        ("authentication", {"authenticationEnabled": "false"}, "bad"),
        ("authentication", {"authenticationEnabled": "false", "bindAddress": "::1"}, "note"),
        ("authorization", {"authorizationEnabled": "false"}, "bad"),
        ("allowAnonymous", {"allowAnonymous": "true"}, "bad"),
        ("addresses", {}, "note"),
        ("TLS", {"tlsMode": "disabled"}, "bad"),
        ("TLS", {"tlsMode": "permissive"}, "bad"),
        ("TLS", {"tlsMode": "permissive", "tlsCertificate": "/file"}, "note"),
        ("clusterToken", {"clusterToken": ""}, "note"),
        ("clusterToken", {"trustedNetwork": "true", "tlsMode": "permissive"}, "note"),
        ("frontDoor", {"frontDoor": "grpcio"}, "note"),
        ("wrong signatures", {"authenticationMaxFailures": "0"}, "note"),
        ("certificates of clients", {"tlsClientIdentity": "CN"}, "note"),
        ("metrics", {}, "note"),
        ("age of signatures", {"authenticationClockSkew": "0"}, "bad"),
        ("age of signatures", {"authenticationLocalTimes": "true"}, "note"),
        ("key of the secret keys", {"authenticationKeyFile": ""}, "note"),
        ("first user", {"initAuthenticationUser": "********"}, "note"),
        ("audit log", {"auditLogFile": ""}, "note"),
        ("automatic creation", {"autoCreateTopicEnable": "true"}, "note"),
        ("testHooks", {"testHooks": "true"}, "bad"),
        ("console", {"console": "true"}, "note"),
        ("console", {"console": "true", "consoleAllowChanges": "true"}, "bad"),
        ("remoting port", {"remotingListenPort": "10911", "tlsMode": "permissive"}, "note"),
    ],
)
def test_what_is_open_names_what_closes_it(
    what: str, changed: dict[str, str], verdict: str
) -> None:
    finding = found(**{"bindAddress": "0.0.0.0", **changed})[what]
    assert (finding.verdict, bool(finding.advice)) == (verdict, True), finding


def test_routes_of_a_nameserver_are_open_on_its_remoting_port() -> None:
    assert found("namesrv", remotingListenPort="9877")["remoting port"].verdict == "note"


def test_users_of_examples_and_missing_quotas_are_named() -> None:
    assert "rotate RocketMQ" in of_users({"RocketMQ": True, "orders": False}).advice
    assert of_users({"orders": False}).verdict == "good"
    assert [of_quotas(count).verdict for count in (0, 1)] == ["note", "good"]


def test_readable_secrets_and_certificates_that_end_are_found(tmp_path: Path) -> None:
    now = datetime.now(UTC)
    key, chain = tmp_path / "key", tmp_path / "chain"
    for file, ends in ((chain, 10), (tmp_path / "old", -1), (tmp_path / "long", 300)):
        made = trustme.CA().issue_cert("localhost", not_after=now + timedelta(days=ends))
        made.cert_chain_pems[0].write_to_path(file)
    key.write_text("secret")
    key.chmod(0o640)
    names = {"tlsKey": str(key), "tlsCertificate": str(chain), "storePathRootDir": str(tmp_path)}
    names |= {"tlsCa": str(tmp_path / "old"), "frontTlsCertificate": str(tmp_path / "long")}
    tmp_path.chmod(0o755)
    rows = {each.what: each for each in of_files(names, now)}
    verdicts = {what: each.verdict for what, each in rows.items()}
    assert verdicts == {
        **{"tlsKey": "bad", "tlsCertificate": "note", "tlsCa": "bad", "store": "note"},
        **{"frontTlsCertificate": "good", "key of the secret keys": "good"},
    }
    assert rows["tlsKey"].advice == f"chmod 600 {key}"


def run(*words: str) -> tuple[int, list[dict[str, str]]]:
    """Run `cometmq doctor security`; return its exit code and rows."""
    command = ["doctor", "security", *words, "-o", "json"]
    done = CliRunner().invoke(cli, command, standalone_mode=False)
    assert done.exception is None, done.exception
    return done.return_value, json.loads(done.stdout)


def test_a_file_is_checked_and_a_weak_token_is_bad(tmp_path: Path) -> None:
    file = tmp_path / "namesrv.conf"
    file.write_text("clusterToken=aaaaaaaaaaaaaaaaaaaa\n")
    code, (row,) = run("-c", str(file), "--of", "namesrv")
    assert (code, row["verdict"]) == (Exit.PROBLEMS, "bad")
    assert "too weak" in row["found"]
    file.write_text("clusterToken=0123456789abcdef0123\nbindAddress=127.0.0.1\n")
    file.chmod(0o600)
    assert run("-c", str(file), "--of", "namesrv")[0] == Exit.DONE
    file.chmod(0o644)
    code, rows = run("-c", str(file), "--of", "namesrv", "--open")
    assert code == Exit.PROBLEMS
    assert "good" not in {row["verdict"] for row in rows}
