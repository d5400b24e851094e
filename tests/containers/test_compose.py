"""The image and docker-compose.yml: built, started, used, and a container killed.

Starts an engine if none runs (`engine.py`); if that is impossible, the tests are skipped with the
reason. `scripts/base_image` builds the base if no registry is reachable.
"""

from __future__ import annotations

import json
import os
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
import rocketmq
import yaml

from cometmq import __version__
from cometmq.drills.containers import containers
from cometmq.drills.containers.engine import Engine, NoEngine, engine
from cometmq.tests.harness.cluster import cometmq_command, wait_until
from cometmq.tests.harness.official_program import OfficialProgram

ROOT = Path(__file__).resolve().parents[2]
CLIENTS = ROOT / "tests" / "interop" / "clients"
SERVICES = (*containers.NAMESERVERS, *containers.BROKERS, *containers.PROXIES)
#: Runs `cometmq WORDS` at one node; returns the exit code and the output.
Door = Callable[..., tuple[int, str]]


@pytest.fixture(scope="module")
def docker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Engine]:
    """Provide an engine that has the image."""
    try:
        with engine(tmp_path_factory.mktemp("docker") / "engine") as found:
            containers.build(found)
            yield found
    except NoEngine as reason:
        pytest.skip(str(reason))


def compose_config(secrets: str, folder: Path, *files: str) -> subprocess.CompletedProcess[str]:
    """Run `docker compose config`, which needs no engine."""
    try:
        command = Engine(dict(os.environ)).compose() if shutil.which("docker") else None
    except NoEngine:
        command = None
    if command is None:
        pytest.skip("neither `docker compose` nor docker-compose is installed")
    empty = folder / "empty.env"  # .env may name secrets
    empty.touch()
    return subprocess.run(
        [*command, *(f"--file={file}" for file in files), "--env-file", str(empty), "config"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "COMETMQ_SECRETS": secrets},
    )


def test_compose_refuses_the_file_without_secrets(tmp_path: Path) -> None:
    done = compose_config("", tmp_path)
    assert done.returncode != 0
    assert "run scripts/secrets first" in done.stderr


def test_compose_accepts_the_file(tmp_path: Path) -> None:
    done = compose_config(str(tmp_path), tmp_path)
    assert done.returncode == 0, done.stderr
    shown = yaml.safe_load(done.stdout)["services"]
    for service in SERVICES:
        row = shown[service]
        assert row["image"] == f"cometmq:{__version__}"
        assert row["read_only"] and row["security_opt"] == ["no-new-privileges:true"]
        assert row["hostname"] == service
        health = row["healthcheck"]  # a process of Python cost a quarter of a core for eight
        assert (health["test"], health["interval"]) == (["CMD", "cometmq-ready"], "10s")
        assert row["mem_limit"] and "ulimits" not in row, "an engine may have lower hard limits"
        # The token is a file: whoever lists the environment of a container does not see it.
        assert "COMETMQ_CLUSTER_TOKEN" not in row["environment"]
        # Otherwise the image's volume is an anonymous one, which stays after `down`.
        named = [volume.split(":")[1] for volume in row.get("volumes", [])]
        assert "/data" in (*named, *row["tmpfs"])
    published = {name for name in SERVICES if "ports" in shown[name]}
    assert published == set(containers.PROXIES)
    for row in shown.values():
        assert row["pids_limit"] and row["logging"]["options"]["max-size"]
        assert all("127.0.0.1" in str(port) for port in row.get("ports", []))
    # Routes of classic clients name an address that clients on this machine reach.
    assert "COMETMQ_REMOTING_ADVERTISE: 127.0.0.1:9876" in done.stdout


def test_observers_keep_their_data_and_alerts_reach_alertmanager() -> None:
    services = yaml.safe_load((ROOT / "docker-compose.yml").read_text())["services"]
    for name in ("prometheus", "alertmanager", "grafana"):
        assert any(volume.startswith(f"{name}:") for volume in services[name]["volumes"])
    password = services["grafana"]["environment"]["GF_SECURITY_ADMIN_PASSWORD__FILE"]
    assert password == "/run/secrets/grafana-password"
    scraped = yaml.safe_load((ROOT / "deploy" / "prometheus" / "prometheus.yml").read_text())
    (alerted,) = scraped["alerting"]["alertmanagers"]
    assert alerted["static_configs"] == [{"targets": ["alertmanager:9093"]}]


@pytest.mark.parametrize("script", ["image", "base_image"])
def test_a_script_that_needs_an_engine_says_so_before_it_works(script: str, tmp_path: Path) -> None:
    done = subprocess.run(
        ["bash", str(ROOT / "scripts" / script)],
        env={**os.environ, "DOCKER_HOST": f"unix://{tmp_path}/none"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1
    assert "no docker engine answers" in done.stderr.lower()


def drill(docker: Engine, *words: str, seconds: float) -> str:
    """Run `cometmq drill --compose` in a separate process; fail if a check failed."""
    command = (*cometmq_command(), "drill", "--compose", "--no-build")
    return docker.beside(*command, *words, seconds=seconds)


@pytest.mark.slow  # two to three minutes; drills of processes kill the same roles
@pytest.mark.timeout(900)
def test_the_cluster_survives_kills_in_containers(docker: Engine) -> None:
    """Kill a broker and a controller, restart all, remove and create all again, under load."""
    words = ("--faults", "kill,restart,down", "--services", "a0,ns0")
    assert "passed" in drill(docker, *words, seconds=800)


@pytest.mark.slow  # a minute or two; drills 27 and 41 fill the disks of processes
@pytest.mark.timeout(900)
def test_the_cluster_survives_full_disks_in_containers(docker: Engine) -> None:
    assert "passed" in drill(docker, "--faults", "full", seconds=800)


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_every_container_in_turn(docker: Engine) -> None:
    """Kill, stop, pause and disconnect each nameserver and broker; disconnect replicas; fill."""
    assert "passed" in drill(docker, seconds=3500)


@pytest.mark.timeout(900)
def test_a_broker_of_testcontainers(docker: Engine) -> None:
    env = {**docker.env, "TESTCONTAINERS_RYUK_DISABLED": "true"}  # its reaper is a remote image
    beside = Engine(env, docker.inside)
    printed = beside.beside(
        sys.executable, "-P", "-m", "cometmq.tests.containers.container_program"
    )
    assert "too large: refused" in printed
    assert "nowhere" in printed
    assert "all of it worked" in printed


#: Sends and receives a message as admin, at the name of both proxies.
CONTAINED = """
import sys, cometmq
roots = open("/certificates/ca.pem", "rb").read()
user = dict(credentials=cometmq.Credentials("admin", sys.argv[1]), tls=True, tls_roots=roots)
reader = dict(user, group="inside", topics="orders")
with (cometmq.sync.Producer("cometmq:8081", **user) as producer,
      cometmq.sync.SimpleConsumer("cometmq:8081", **reader) as consumer):
    sent = producer.send("orders", b"from a container").message_id
    received = None
    while received != sent:
        for message in consumer.receive(wait=20):
            consumer.ack(message)
            received = message.message_id
print("received")
"""


@pytest.mark.timeout(900)
def test_the_secure_cluster_serves_its_users_over_tls(docker: Engine, tmp_path: Path) -> None:
    """On this machine by the official client through both proxies, and in another container by the
    SDK and the official client."""
    files = ("docker-compose.yml", "docker-compose.secure.yml")
    with containers.Containers(docker, tmp_path / "secured", *files) as secured:
        secured.up()
        first = json.loads((tmp_path / "secured" / "secrets" / "first-user").read_text())
        a0 = secured.container("a0")
        keys = {"COMETMQ_ACCESS_KEY": "admin", "COMETMQ_SECRET_KEY": first["password"]}
        refused = a0.exec_run(["cometmq", "topic", "create", "orders"])
        assert refused.exit_code != 0 and b"UNAUTHORIZED" in refused.output
        made = a0.exec_run(["cometmq", "topic", "create", "orders"], environment=keys)
        assert made.exit_code == 0, made.output
        shown = json.dumps(a0.attrs)
        token = (tmp_path / "secured" / "secrets" / "cluster-token").read_text().strip()
        assert token not in shown and first["password"] not in shown

        authority = tmp_path / "ca.pem"
        authority.write_bytes(a0.exec_run(["cat", "/certificates/ca.pem"]).output)
        cases = [
            [endpoint, "admin", secret, "orders", "readers"]
            for endpoint in (containers.ENDPOINT, "127.0.0.1:8082")
            for secret in (first["password"], "wrong")
        ]
        printed = docker.beside(
            *("env", "rocketmq.client.enableSsl=true", f"HOME={tmp_path}"),
            *("GRPC_VERBOSITY=NONE", f"GRPC_DEFAULT_SSL_ROOTS_FILE_PATH={authority}"),
            *(sys.executable, str(CLIENTS / "python_acl.py"), json.dumps(cases)),
        )
        good, bad, second_good, second_bad = json.loads(printed.strip().splitlines()[-1])
        assert (good, second_good) == ("signed", "signed")
        assert "route" in bad and "route" in second_bad

        network = f"{containers.PROJECT[1]}_default"
        volume = f"{containers.PROJECT[1]}_certificates:/certificates:ro"
        words = ("docker", "run", "--rm", f"--network={network}", f"--volume={volume}")
        image = (f"cometmq:{__version__}", "-c", CONTAINED, first["password"])
        assert "received" in docker.run(*words, "--entrypoint=python3", *image)

        # The image's Python with the packages of the tests.
        packages = Path(rocketmq.__file__).parents[1]
        official = (
            *(f"--volume={packages}:/packages:ro", f"--volume={CLIENTS}:/clients:ro"),
            *("--env=PYTHONPATH=/packages", "--env=rocketmq.client.enableSsl=true"),
            "--env=GRPC_DEFAULT_SSL_ROOTS_FILE_PATH=/certificates/ca.pem",
            *("--env=HOME=/tmp", "--env=GRPC_VERBOSITY=NONE", "--entrypoint=python3"),
        )
        case = ["cometmq:8081", "admin", first["password"], "orders", "contained"]
        program = ("/clients/python_acl.py", json.dumps([case]))
        printed = docker.run(*words, *official, f"cometmq:{__version__}", *program)
        assert json.loads(printed.strip().splitlines()[-1]) == ["signed"]


@pytest.fixture(scope="module")
def composed(
    docker: Engine, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[containers.Containers]:
    """Provide the running cluster. Its tests are last: the drills use the same port."""
    with containers.Containers(docker, tmp_path_factory.mktemp("composed")) as found:
        yield found.up()


def doors(composed: containers.Containers) -> dict[str, Door]:
    """The node a1, by a command in its container, and the proxy, by its port on the host."""

    def node(*words: str) -> tuple[int, str]:
        done = composed.container("a1").exec_run(["cometmq", *words])
        return int(done.exit_code), done.output.decode()

    def proxy(*words: str) -> tuple[int, str]:
        command = [*composed.engine.inside, *cometmq_command(), *words]
        done = subprocess.run(
            command if "--endpoint" in words else [*command, "--endpoint", containers.ENDPOINT],
            env=composed.engine.env,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
        )
        return done.returncode, done.stdout

    return {"node": node, "proxy": proxy}


def wait_used(composed: containers.Containers, topic: str) -> None:
    """Return when both groups have messages of a topic."""

    def used() -> bool:
        code, text = doors(composed)["proxy"]("topic", "describe", topic, "-o", "json")
        queues = json.loads(text)["queues"] if code == 0 else []
        return {one["broker"] for one in queues if one["messages"]} == set(containers.GROUPS)

    wait_until(f"both groups have messages of {topic}", used, containers.SETTLE_S)


@pytest.mark.timeout(900)
def test_commands_in_every_container_are_about_the_cluster(
    composed: containers.Containers,
) -> None:
    """Without options, also beside a nameserver that does not decide."""
    for service in SERVICES:
        code, text = composed.cometmq(service, "ha", "status", "-o", "json")
        assert (code, [one["health"] for one in json.loads(text)]) == (0, ["healthy"] * 2), service
        code, text = composed.cometmq(service, "topic", "list", "-o", "json")
        assert code == 0, (service, text)


@pytest.mark.timeout(900)
def test_a_paused_container_runs_commands_and_nothing_else(
    composed: containers.Containers,
) -> None:
    """A pause that freezes the container fails beside a health check, or never ends."""
    paused = composed.container("b1")

    def process() -> str:
        return str(paused.exec_run(["grep", "State", "/proc/1/status"]).output)

    composed.pause("b1")
    wait_until("the process is stopped", lambda: "T (stopped)" in process(), containers.SETTLE_S)
    composed.unpause("b1")
    assert "T (stopped)" not in process()
    wait_until("both groups are whole", composed.whole, containers.SETTLE_S)


@pytest.mark.timeout(900)
def test_a_topic_created_at_one_place_is_used_in_both_groups(
    composed: containers.Containers, tmp_path: Path
) -> None:
    for door, cometmq in doors(composed).items():
        topic = f"created-by-{door}"
        assert cometmq("topic", "create", topic, "--queues", "2") == (
            0,
            "".join(
                f"{name}  Created topic {topic}: normal, 2 queues.\n" for name in containers.GROUPS
            ),
        )
        inside = composed.engine.inside
        with ExitStack() as stack:
            producer, consumer = (
                stack.enter_context(
                    OfficialProgram(tmp_path / f"{door}-{role}", role, *words, inside=inside)
                )
                for role, *words in (
                    ("producer", containers.ENDPOINT, topic, "0", "1000000"),
                    ("consumer", containers.ENDPOINT, topic, f"readers-{door}"),
                )
            )
            wait_used(composed, topic)
            producer.close()
            wait_until(
                "the consumer has every acknowledged message",
                lambda sent=producer, got=consumer: (
                    got.seen("received") >= sent.seen("acknowledged")
                ),
                containers.SETTLE_S,
            )


@pytest.mark.timeout(900)
def test_a_create_without_one_group_is_completed_by_the_printed_command(
    composed: containers.Containers, tmp_path: Path
) -> None:
    printed = {}
    for service in containers.GROUPS["broker-b"]:
        composed.kill(service)
    for door, cometmq in doors(composed).items():
        topic = f"without-b-{door}"
        code, text = cometmq("topic", "create", topic, "--queues", "2")
        assert code == 1, text
        assert f"broker-a  Created topic {topic}: normal, 2 queues.\n" in text
        assert "broker-b  Failed: " in text
        assert "1 of 2 broker groups failed." in text
        printed[door] = text.split("To finish, run: ")[1].splitlines()[0]
    for service in containers.GROUPS["broker-b"]:
        composed.start(service)
    wait_until("both groups are whole", composed.whole, containers.SETTLE_S)
    for door, cometmq in doors(composed).items():
        topic = f"without-b-{door}"
        wait_until(
            f"the {door} reaches broker-b",
            lambda run=cometmq: run("topic", "list", "--broker", "broker-b")[0] == 0,
            containers.SETTLE_S,
        )
        program, *words = shlex.split(printed[door])
        assert (program, words[-2:]) == ("cometmq", ["--broker", "broker-b"])
        assert cometmq(*words) == (0, f"Created topic {topic}: normal, 2 queues.\n")
        with OfficialProgram(
            tmp_path / door,
            *("producer", containers.ENDPOINT, topic, "0", "1000000"),
            inside=composed.engine.inside,
        ):
            wait_used(composed, topic)
