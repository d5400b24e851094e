"""Contexts: which cluster a command addresses, and which addresses get its secrets."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import click
import pytest

from cometmq.cli.links import keep_name, links
from cometmq.cli.options import endpoint_option
from cometmq.operations.contexts import Context, Contexts, save
from cometmq.operations.errors import CliError
from cometmq.tests.cli.cluster.test_local_cluster import run
from cometmq.tests.harness.cluster import Cluster, temporary

FAR = "10.0.0.1:8081"
PROD = Context(
    FAR, "10.0.0.2:9876", access_key="admin", secret_key="key", tls_ca="ca.pem", tls=True
)


@pytest.fixture
def place(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A directory of no cluster, without variables; its `cometmq` folder has the contexts."""
    monkeypatch.chdir(tmp_path)
    for name in [name for name in os.environ if name.startswith("COMETMQ_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    (tmp_path / "token").write_text("secret\n")
    prod = replace(PROD, token_file=str(tmp_path / "token"))
    save(Contexts("prod", {"prod": prod, "other": Context("10.0.0.9:8081")}))
    return tmp_path


@pytest.fixture
def command(place: Path) -> Iterator[click.Context]:
    """A running command without options."""
    with click.Context(click.Command("test")) as context:
        yield context


def endpoint_of(*arguments: str) -> str:
    """Return the endpoint that a command with these arguments uses."""
    found: list[str] = []
    taker = click.Command("test", callback=lambda **values: found.append(values["endpoint"]))
    endpoint_option(taker).main(arguments, standalone_mode=False)
    return found[0]


def test_the_secrets_of_a_context_go_to_its_addresses_only(command: click.Context) -> None:
    assert (
        links().token_metadata(FAR)
        == links().token_metadata("10.0.0.2:9876")
        == (("x-cometmq-token", "secret"),)
    )
    found = links().credentials(FAR)
    assert found is not None
    assert (found.access_key, found.secret_key) == ("admin", "key")
    assert links().options_for(FAR).tls
    for other in ("127.0.0.1:8081", "10.0.0.9:8081", f"{FAR};10.0.0.9:8081"):
        assert links().token_metadata(other) == ()
        assert links().credentials(other) is None
        assert not links().options_for(other).tls


def test_a_context_covers_the_replicas_that_its_nodes_list_and_no_others(
    command: click.Context,
) -> None:
    links().list_addresses("127.0.0.1:9876", ["10.0.0.3:10912"])
    assert links().token_metadata("10.0.0.3:10912") == ()
    links().list_addresses("10.0.0.2:9876", ["10.0.0.4:10912"])
    assert links().token_metadata("10.0.0.4:10912") != ()


def test_secrets_of_variables_do_not_go_to_addresses_of_a_context(
    command: click.Context, monkeypatch: pytest.MonkeyPatch
) -> None:
    save(Contexts("local", {"local": Context("127.0.0.1:8081")}))
    for name in ("CLUSTER_TOKEN", "ACCESS_KEY", "SECRET_KEY"):
        monkeypatch.setenv(f"COMETMQ_{name}", "of-another-cluster")
    assert links().token_metadata("127.0.0.1:8081") == ()
    assert links().credentials("127.0.0.1:8081") is None
    assert links().token_metadata("127.0.0.1:8083") != ()


def test_the_token_of_a_context_is_not_sent_in_plaintext_to_other_machines(
    command: click.Context, place: Path
) -> None:
    plain = Context(FAR, token_file=str(place / "token"))
    save(Contexts("plain", {"plain": plain, "trusted": replace(plain, trusted_network=True)}))
    assert links().token_metadata(FAR) == ()
    assert "in plaintext" in links().refusal_of_token(FAR)
    with click.Context(click.Command("test")) as other:
        other.meta["cometmq.context.named"] = "trusted", True
        assert links().token_metadata(FAR) != ()


def test_options_override_variables_which_override_the_directory_and_the_current_context(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert endpoint_of() == FAR
    (place / "up.json").write_text(json.dumps({"endpoints": "127.0.0.1:1"}))
    assert endpoint_of() == "127.0.0.1:1"
    monkeypatch.setenv("COMETMQ_ENDPOINT", "127.0.0.1:2")
    assert endpoint_of() == "127.0.0.1:2"
    monkeypatch.setenv("COMETMQ_CONTEXT", "other")
    assert endpoint_of() == "10.0.0.9:8081"
    assert endpoint_of("--context", "prod") == FAR
    assert endpoint_of("--context", "prod", "--endpoint", "127.0.0.1:3") == "127.0.0.1:3"
    (place / "cluster-token").touch()
    assert endpoint_of("--data", str(place)) == "127.0.0.1:1"
    with pytest.raises(CliError, match="either --context or --data"):
        endpoint_of("--data", str(place), "--context", "prod")


def test_a_context_without_the_needed_address_is_an_error(place: Path) -> None:
    save(Contexts("", {"half": Context(nameservers="10.0.0.2:9876")}))
    assert endpoint_of() == "127.0.0.1:8081"
    with pytest.raises(CliError, match="'half' has no endpoints; give --endpoint"):
        endpoint_of("--context", "half")
    with pytest.raises(CliError, match=r"no context 'nothing'\. Known: half"):
        endpoint_of("--context", "nothing")


@pytest.mark.parametrize(
    "content",
    ["", "[]", '{"current": "", "contexts": {"a": 1}}']
    + [
        f'{{"current": "", "contexts": {{"a": {one}}}}}' for one in ('{"tls_ca": 7}', '{"tls": ""}')
    ],
)
def test_a_damaged_file_is_named(place: Path, content: str) -> None:
    (place / "cometmq" / "contexts.json").write_text(content)
    with pytest.raises(CliError, match=r"contexts\.json is damaged"):
        endpoint_of()


def test_a_relative_configuration_directory_is_ignored(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", "relative")
    monkeypatch.setenv("HOME", str(place))
    assert endpoint_of() == "127.0.0.1:8081"
    (place / ".config").symlink_to(place)
    assert endpoint_of() == FAR


def test_without_a_home_directory_there_is_no_context(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("XDG_CONFIG_HOME")
    monkeypatch.setenv("HOME", "/dev/null")
    assert endpoint_of() == "127.0.0.1:8081"

    def absent() -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.setattr(Path, "home", absent)
    assert endpoint_of() == "127.0.0.1:8081"
    with pytest.raises(CliError, match="no context 'prod'"):
        endpoint_of("--context", "prod")
    with pytest.raises(CliError, match="set HOME or XDG_CONFIG_HOME"):
        save(Contexts())


def test_keep_name_ignores_an_empty_variable() -> None:
    with click.Context(click.Command("test")) as context:
        keep_name(context, click.Option(["--context"]), "")
        assert context.meta == {}


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with temporary("--single", "--auth") as found:
        yield found


def test_commands_anywhere_address_the_cluster_of_a_context(
    cluster: Cluster, tmp_path: Path
) -> None:
    where = {"XDG_CONFIG_HOME": str(tmp_path / "configuration")}
    keys = dict(
        line.split("=", 1) for line in (cluster.data / "admin-credentials").read_text().split()
    )
    endpoint = cluster.ready()["endpoints"]
    words = ["context", "add", "one", "--endpoint", endpoint, "--access-key", keys["accessKey"]]
    secret = {"COMETMQ_SECRET_KEY": keys["secretKey"]}
    run(*words, cwd=tmp_path, env={**where, **secret})
    file = tmp_path / "configuration" / "cometmq" / "contexts.json"
    assert file.stat().st_mode & 0o777 == 0o600

    run("topic", "list", "--endpoint", endpoint, cwd=tmp_path, env=where, code=1)
    run("topic", "create", "a", "--context", "one", cwd=tmp_path, env=where)
    run("topic", "create", "b", cwd=tmp_path, env={**where, "COMETMQ_CONTEXT": "one"})
    run("context", "use", "one", cwd=tmp_path, env=where)
    run("topic", "create", "c", cwd=tmp_path, env=where)
    run("context", "add", "two", "--data", str(cluster.data), "--use", cwd=tmp_path, env=where)
    rows = json.loads(run("topic", "list", "-o", "json", cwd=tmp_path, env=where))
    assert {"a", "b", "c"} <= {row["topic"] for row in rows}
    run("ha", "status", cwd=tmp_path, env=where)

    told = run("context", "list", "-o", "json", cwd=tmp_path, env=where)
    assert keys["secretKey"] not in told
    assert [(row["name"], row["current"]) for row in json.loads(told)] == [
        ("one", False),
        ("two", True),
    ]
    run("context", "remove", "two", cwd=tmp_path, env=where)
    assert "Cannot connect to 127.0.0.1:1." in run(
        "topic", "list", cwd=tmp_path, env={**where, "COMETMQ_ENDPOINT": "127.0.0.1:1"}, code=1
    )


def test_context_commands_refuse_what_cannot_be_used(tmp_path: Path) -> None:
    where = {"XDG_CONFIG_HOME": str(tmp_path)}
    for words, reason in (
        (["add", "a/b", "--endpoint", FAR], "is not a name of a context"),
        (["add", "a"], "Give --endpoint, --namesrv or --data."),
        (["add", "a", "--endpoint", "nowhere"], "must be HOST:PORT"),
        (["add", "a", "--data", str(tmp_path)], "is not a data directory of `cometmq up`"),
        (["add", "a", "--endpoint", FAR, "--token-file", "absent"], "Cannot read absent"),
        (["use"], "Give either NAME or --none."),
    ):
        assert reason in run("context", *words, cwd=tmp_path, env=where, code=2)
    run("context", "add", "a", "--endpoint", FAR, cwd=tmp_path, env=where)
    assert "--replace replaces it" in run(
        "context", "add", "a", "--endpoint", FAR, cwd=tmp_path, env=where, code=2
    )
    for words in (["use", "b"], ["remove", "b"]):
        assert "no context 'b'" in run("context", *words, cwd=tmp_path, env=where, code=4)
    (tmp_path / "cometmq" / "contexts.json").chmod(0o644)
    assert "chmod 600" in run("context", "list", cwd=tmp_path, env=where, code=2)
