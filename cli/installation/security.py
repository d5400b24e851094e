"""`cometmq doctor security`: what is open, and what closes it."""

from collections.abc import Iterable
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path

import click

from ...operations.errors import CliError, Exit
from ..links import connect
from ..options import endpoint_option, output_option
from ..output import show_rows
from .finding import Finding, code_of
from .openings import Settings, of_kept, of_quotas, of_users, openings
from .secret_files import of_files, readable
from .version import version_of

_PROCESSES = ("broker", "namesrv", "proxy")


@click.command()
@click.option(
    "-c",
    "--config",
    "file",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Check a configuration file, with the environment, instead of a running broker.",
)
@click.option(
    "--of",
    "process",
    type=click.Choice(_PROCESSES),
    default="broker",
    show_default=True,
    help="With -c: the process that reads the file.",
)
@click.option("--open", "only_open", is_flag=True, help="Only what is not good.")
@endpoint_option
@output_option
def security(
    *, file: Path | None, process: str, only_open: bool, endpoint: str, output: str
) -> int:
    """Check what a broker, a nameserver or a proxy leaves open, and name what closes it.

    Of a running broker: settings, users and quotas. Files that its settings name are checked if
    they are on this machine. Exit code 5: a check is bad.

    \b
    cometmq doctor security --endpoint 127.0.0.1:8081
    cometmq doctor security -c /etc/cometmq/namesrv.conf --of namesrv --open
    """
    findings = _of_file(file, process) if file is not None else _of_node(endpoint)
    code = code_of(findings)
    shown = [asdict(each) for each in findings if not only_open or each.verdict != "good"]
    show_rows(shown, output, empty="Nothing is open.")
    return code


def _of_file(file: Path, process: str) -> list[Finding]:
    from ..config.loader import load
    from ..config.sources import broker_owners, namesrv_owners, proxy_owners

    owners = {"broker": broker_owners, "namesrv": namesrv_owners, "proxy": proxy_owners}
    try:
        loaded = load(owners.pop(process)(), file=file, elsewhere=_types(owners.values()))
    except CliError as error:  # a token that can be guessed, or settings that exclude each other
        return [Finding("settings", str(error), "bad", f"correct {file}")]
    found = [*openings(Settings(process, values := {k: v.shown for k, v in loaded.values.items()}))]
    found += of_files(values, datetime.now(UTC))
    in_file = [
        key
        for key, value in loaded.values.items()
        if value.setting.secret and value.value and value.origin.startswith("file")
    ]
    if in_file:
        found.append(readable(f"file with {', '.join(in_file)}", file))
    if not version_of("cometmq-native"):
        advice = "pip install 'cometmq[native]'"
        found.append(Finding("cometmq-native", "not installed here", "note", advice))
    return found


def _types(owners: Iterable[object]) -> list[type]:
    return [each for of in owners if callable(of) for each in of()]


def _of_node(endpoint: str) -> list[Finding]:
    from ...proto import paths, v1

    with connect(endpoint) as connection:
        answer = connection.call(paths.GET_CONFIG, v1.GetConfigRequest(), v1.GetConfigResponse)
        values = {entry.key: entry.value for entry in answer.entries}
        found = [*openings(Settings("broker", values)), *of_files(values, datetime.now(UTC))]
        found += of_kept(answer.kept, values)
        try:
            users = connection.call(paths.LIST_USERS, v1.ListUsersRequest(), v1.ListUsersResponse)
            found.append(of_users({user.name: user.is_super for user in users.users}))
            quotas = connection.call(
                paths.LIST_QUOTAS, v1.ListQuotasRequest(), v1.ListQuotasResponse
            )
            found.append(of_quotas(len(quotas.quotas)))
        except CliError as error:
            if error.code is not Exit.FAILED:
                raise
            advice = "use the keys of a user of type Super"
            found.append(Finding("users and quotas", str(error), "note", advice))
    return found
