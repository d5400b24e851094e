"""Official clients with credentials: accepted, refused by signature, by state and by policy.

Each client runs all cases of a test in one process. The cluster checks signatures and permissions
(`cometmq up --auth`); a follower, a proxy and a new leader decide alike.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from cometmq.proto.native import is_available
from cometmq.tests.harness.cluster import Cluster, cometmq_command, wait_until
from cometmq.tests.harness.jvm import JAVA
from cometmq.tests.interop.programs import CACHE, HERE, build, compiled, fetched, node, require

pytestmark = pytest.mark.timeout(600)  # the first run fetches and builds

RUN_S = 240.0
SECRET, OTHER_SECRET = "orders-secret", "another-secret"
NATIVE = is_available()
Case = tuple[str, str, str, str, str]
Client = Callable[[list[Case]], list[str]]


def python_client(cases: list[Case]) -> list[str]:
    return [sys.executable, str(HERE / "python_acl.py"), json.dumps(cases)]


def java_client(cases: list[Case]) -> list[str]:
    require("mvn", "java", "javac")
    jars = fetched(CACHE / "java-jars", HERE / "java")
    classes = compiled(CACHE / "java-acl-classes", jars, HERE / "java", "Acl.java")
    program = [*JAVA, "-cp", f"{classes}:{jars}/*", "Acl"]
    return [*program, *(text for case in cases for text in case)]


def go_client(cases: list[Case]) -> list[str]:
    require("go")
    program = CACHE / "go-acl"
    build(["go", "build", "-o", str(program), "./acl"], HERE / "go")
    return [str(program), json.dumps(cases)]


def node_client(cases: list[Case]) -> list[str]:
    program = Path(node()[-1]).with_name("acl.js")
    return ["node", str(program), json.dumps(cases)]


CLIENTS: tuple[Client, ...] = (python_client, java_client, go_client, node_client)
#: Clients that use TLS by default.
TLS_FIRST = (java_client, go_client)


def run(client: Client, cases: list[Case], home: Path, authority: Path, *, tls: bool) -> list[str]:
    """Run the cases in the client's program; return what it printed for each."""
    CACHE.mkdir(parents=True, exist_ok=True)
    home.mkdir(exist_ok=True)
    env = {
        **os.environ,
        "HOME": str(home),
        "JAVA_TOOL_OPTIONS": f"-Duser.home={home} -Xmx256m",
        "GRPC_VERBOSITY": "NONE",
        # Of the Go client; the other programs read it, too.
        "rocketmq.client.enableSsl": str(tls).lower(),
        # Of the Python and Node.js clients' gRPC, which check the server's certificate.
        "GRPC_DEFAULT_SSL_ROOTS_FILE_PATH": str(authority),
    }
    if client is go_client:
        env["HOME"] = os.environ.get("HOME", "/")
        command = client(cases)
        env["HOME"] = str(home)
    else:
        command = client(cases)
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=RUN_S, check=False, env=env, cwd=home
    )
    assert done.returncode == 0, (done.stdout + done.stderr)[-2_000:]
    seen: list[str] = json.loads(done.stdout.strip().splitlines()[-1])
    return seen


def is_unauthorized(text: str) -> bool:
    """Whether the error is UNAUTHORIZED; the Python client hides the status of its first route."""
    words = ("40100", "unauthorized", "failed to fetch topic")
    return any(word in text.lower() for word in words)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """A cluster with authentication, its topic and group, and users."""
    folder = tmp_path_factory.mktemp("acl")
    make_certificate(folder / "ca")
    settings = tls_settings(folder / "ca")
    made = Cluster(folder / "data", "--auth", controller=True, env=settings)
    try:
        made.start().wait_in_sync()
        prepare(made)
        yield made
    finally:
        made.stop()


def make_certificate(folder: Path) -> None:
    """Make an authority and a certificate for 127.0.0.1."""
    command = [*cometmq_command(), "auth", "dev-ca", "--directory", str(folder), "node"]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)


def tls_settings(folder: Path) -> dict[str, str]:
    """Return the settings for TLS beside plaintext on the client port."""
    if not NATIVE:
        return {}
    return {
        "COMETMQ_FRONT_TLS_CERTIFICATE": str(folder / "node.pem"),
        "COMETMQ_FRONT_TLS_KEY": str(folder / "node.key"),
    }


def authority(cluster: Cluster) -> Path:
    """Return the authority of the cluster's certificate."""
    return cluster.data.parent / "ca" / "ca.pem"


def prepare(cluster: Cluster) -> None:
    """Create the names and users of the tests."""
    at = ("--endpoint", cluster.address("master"))
    for topic in ("orders", "secret"):
        cluster.create_topic(topic, queues=1)
    for kind in ("python", "java", "go", "node"):
        cluster.create_group(f"orders-{kind}")
    for name in ("orders", "off", "reader"):
        cluster.run("user", "create", name, "--secret", SECRET, *at)
    cluster.run("user", "disable", "off", *at)
    for user, resource, actions in (
        ("orders", "Topic:orders", "Pub,Sub"),
        ("orders", "Group:orders-*", "Sub"),
        ("reader", "Topic:orders", "Sub"),
        ("reader", "Group:*", "Sub"),
    ):
        cluster.run(
            *("acl", "create", "--user", user, "--resource", resource, "--actions", actions), *at
        )


@contextmanager
def proxy(cluster: Cluster, folder: Path) -> Iterator[str]:
    """Run a proxy of the cluster; yield its address."""
    ready = folder / "proxy.json"
    token = (cluster.data / "cluster-token").read_text().strip()
    namesrv = f"127.0.0.1:{cluster.node('namesrv').ports['namesrv']}"
    command = [
        *(*cometmq_command(), "proxy", "--namesrv-addr", namesrv, "--ready-file", str(ready)),
        *("--grpc-server-port", "0", "--metrics-prom-exporter-port", "0"),
        *("--bind-address", "127.0.0.1"),
    ]
    env = {
        **os.environ,
        **tls_settings(cluster.data.parent / "ca"),
        "COMETMQ_CLUSTER_TOKEN": token,
        "COMETMQ_AUTHENTICATION_ENABLED": "true",
    }
    with (folder / "proxy.log").open("ab") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log, env=env)
    try:
        wait_until("the proxy is ready", ready.exists)
        yield json.loads(ready.read_text())["endpoints"]
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(60)


@pytest.mark.parametrize("client", CLIENTS, ids=lambda client: client.__name__)
def test_a_client_does_what_its_user_may_do(
    client: Client, cluster: Cluster, tmp_path: Path
) -> None:
    group = f"orders-{client.__name__.removesuffix('_client')}"
    master, slave = cluster.address("master"), cluster.address("slave")
    with proxy(cluster, tmp_path) as through:
        accepted: list[Case] = [
            (address, "orders", SECRET, "orders", group) for address in (master, slave, through)
        ]
        refused: list[Case] = [
            (slave, "orders", OTHER_SECRET, "orders", group),
            (slave, "off", SECRET, "orders", group),
            (slave, "orders", SECRET, "secret", group),
            # The route is readable, but its settings name a topic to send to: Telemetry refuses.
            (slave, "reader", SECRET, "orders", group),
            (through, "orders", OTHER_SECRET, "orders", group),
            (through, "reader", SECRET, "orders", group),
        ]
        usual_tls = NATIVE and client in TLS_FIRST
        seen = run(client, accepted + refused, tmp_path, authority(cluster), tls=usual_tls)
    assert seen[: len(accepted)] == ["signed"] * len(accepted)
    failures = seen[len(accepted) :]
    # Some clients report only that the stream of a refused Telemetry ended.
    for text in (*failures[:3], failures[4]):
        assert is_unauthorized(text), failures
    assert "signed" not in failures


@pytest.mark.skipif(not NATIVE, reason="TLS and plaintext on one port need the native door")
@pytest.mark.parametrize("client", CLIENTS, ids=lambda client: client.__name__)
def test_a_client_is_checked_alike_over_its_other_transport(
    client: Client, cluster: Cluster, tmp_path: Path
) -> None:
    """Java and Go in plaintext, Python and Node.js over TLS with a verified certificate."""
    slave = cluster.address("slave")
    group = f"orders-{client.__name__.removesuffix('_client')}"
    cases = [
        (slave, "orders", SECRET, "orders", group),
        (slave, "orders", OTHER_SECRET, "orders", group),
        (slave, "off", SECRET, "orders", group),
        (slave, "orders", SECRET, "secret", group),
    ]
    tls = client not in TLS_FIRST
    seen = run(client, cases, tmp_path, authority(cluster), tls=tls)
    assert seen[0] == "signed", seen
    assert "signed" not in seen[1:]
    assert all(map(is_unauthorized, seen[1:])), seen


def test_the_next_leader_knows_users_and_policies(
    cluster: Cluster, tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    at = ("--endpoint", cluster.address("slave"))
    cluster.run("user", "create", "late", "--secret", SECRET, *at)
    cluster.run("acl", "create", "--user", "late", "--resource", "*", "--actions", "All", *at)
    cluster.run("acl", "create", "--user", "late", "--resource", "Topic:secret", *at, *DENY)
    cluster.kill9("master")
    slave = cluster.address("slave")
    for client in CLIENTS:
        group = f"orders-{client.__name__.removesuffix('_client')}"
        cases = [
            (slave, "late", SECRET, "orders", group),
            (slave, "late", SECRET, "secret", group),
            (slave, "orders", OTHER_SECRET, "orders", group),
        ]
        tls = NATIVE and client in TLS_FIRST
        seen = run(client, cases, tmp_path, authority(cluster), tls=tls)
        assert seen[0] == "signed"
        assert seen[1] != "signed"
        assert is_unauthorized(seen[2]), seen


DENY = ("--actions", "Pub", "--decision", "deny")
