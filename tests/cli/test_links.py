"""Which nodes get the cluster token from a command, and how a command uses TLS."""

from pathlib import Path

import click
import pytest

from cometmq.cli.links import links
from cometmq.cli.options import endpoint_option
from cometmq.operations.errors import CliError
from cometmq.operations.links import LinkOptions
from cometmq.operations.local_cluster import found_file
from cometmq.tests.harness.tls_cluster import dev_ca

SHOWN = (("x-cometmq-token", "secret"),)
FAR = "10.0.0.1:8081"


@pytest.fixture(autouse=True)
def _context(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> object:
    """A running command with a token in its environment, away from any data directory."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    for name in ("CONTEXT", "ENDPOINT", "NAMESRV_ADDR", "TRUSTED_NETWORK", "TLS_CA"):
        monkeypatch.delenv(f"COMETMQ_{name}", raising=False)
    monkeypatch.setenv("COMETMQ_CLUSTER_TOKEN", "secret")
    with click.Context(click.Command("test")) as context:
        yield context


def over_tls() -> LinkOptions:
    chosen = links().options
    chosen.tls = True
    return chosen


def test_the_token_of_the_environment_goes_to_its_addresses_only(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    over_tls()
    monkeypatch.setenv("COMETMQ_ENDPOINT", f"{FAR};10.0.0.2:8081")
    monkeypatch.setenv("COMETMQ_NAMESRV_ADDR", "10.0.0.3:9876")
    for endpoint in (FAR, f"10.0.0.2:8081;{FAR}", "10.0.0.3:9876", "127.0.0.1:1"):
        assert links().token_metadata(endpoint) == SHOWN
    for endpoint in ("10.0.0.9:8081", f"{FAR};10.0.0.9:8081", "10.0.0.1:8082"):
        assert links().token_metadata(endpoint) == ()
        assert "--token-file" in links().refusal_of_token(endpoint)


def test_the_token_of_a_file_goes_to_the_addresses_of_the_command(tmp_path: Path) -> None:
    (tmp_path / "token").write_text("secret\n")
    over_tls().token_file = tmp_path / "token"
    assert links().token_metadata(FAR) == SHOWN


def test_the_token_goes_to_the_replicas_that_a_node_of_the_context_listed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("COMETMQ_NAMESRV_ADDR", "10.0.0.3:9876")
    over_tls()
    links().list_addresses("10.0.0.9:9876", ["10.0.0.1:10912"])
    assert links().token_metadata("10.0.0.1:10912") == ()
    links().list_addresses("10.0.0.3:9876", ["10.0.0.1:10912"])
    assert links().token_metadata("10.0.0.1:10912") == SHOWN


def test_files_of_the_current_directory_are_for_addresses_of_this_machine(tmp_path: Path) -> None:
    (tmp_path / "admin-credentials").touch()
    for endpoint in ("127.0.0.1:8081", "localhost:8081;[::1]:8083"):
        assert found_file("admin-credentials", endpoint) is not None
    for endpoint in ("127.0.0.1.example:8081", "localhost:8081;10.0.0.1:8081"):
        assert found_file("admin-credentials", endpoint) is None


def test_the_token_is_sent_in_plaintext_over_a_trusted_network_only(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("COMETMQ_ENDPOINT", FAR)
    assert links().token_metadata(FAR) == ()
    assert "in plaintext" in links().refusal_of_token(FAR)
    assert links().token_metadata("127.0.0.1:8081") == SHOWN
    links().options.trusted_network = True
    assert links().token_metadata(FAR) == SHOWN


def test_the_options_of_a_command_count(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    found: list[LinkOptions] = []

    @click.command()
    @endpoint_option
    def command(endpoint: str) -> None:
        found.append(links().options)
        assert links().uses_tls(endpoint)
        links().channel(endpoint).close()

    dev_ca(tmp_path, "one")
    monkeypatch.setenv("COMETMQ_TLS_CA", str(tmp_path / "ca.pem"))
    monkeypatch.setenv("COMETMQ_TRUSTED_NETWORK", "true")
    files = ("--tls-certificate", str(tmp_path / "one.pem"), "--tls-key", str(tmp_path / "one.key"))
    command.main(files, standalone_mode=False)
    command.main(("--token-file", "token"), standalone_mode=False)
    for arguments in (files[:2], ("--tls-ca", str(tmp_path / "missing"))):
        with pytest.raises(CliError):
            command.main(arguments, standalone_mode=False)
    assert found[0].tls_certificate == tmp_path / "one.pem"
    assert found[0].trusted_network
    assert found[1].token_file == Path("token")
