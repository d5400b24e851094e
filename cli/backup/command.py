"""`cometmq backup`: save a running cluster in a directory, check a backup, restore it."""

from __future__ import annotations

import secrets
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import click

from ...operations.broker_groups import BrokerGroups, group_names
from ...operations.errors import CliError, Exit
from ..cluster.shape import NAMESERVERS, REPLICAS_MAX
from ..links import connect
from ..options import endpoint_option
from ..store.verify import progress_bar
from ..times import time_text
from .files import check_space, new_folder
from .manifest import MANIFEST, Manifest
from .restoring import UpDirectory, read_manifest, restore_store, restore_up, total_bytes
from .restoring import verify as check_files

_FOLDER = click.Path(path_type=Path, file_okay=False)
_TOKEN_BYTES = 24
#: Of an incomplete backup: what a repetition adds.
_MORE = ".more"


@click.group()
def backup() -> None:
    """Save a running cluster in a directory, check a backup, restore it."""


@backup.command()
@click.argument("folder", metavar="DIR", type=_FOLDER)
@endpoint_option
def create(folder: Path, endpoint: str) -> None:
    """Save the cluster in the new directory DIR: messages, offsets, topics, groups, users, quotas.

    The cluster keeps running. DIR appears when it is complete. Its files are readable for their
    owner only: they hold all messages, and the secret keys of users as the log has them, encrypted.
    The user must be of type Super, because the log holds the sealed secrets of users. A broker
    group that cannot be saved does not stop the others: the exit code is 1, and the same command
    saves what is left.

    \b
    cometmq backup create backups/monday
    """
    from .saving import add, log_bytes, save

    earlier = read_manifest(folder) if (folder / MANIFEST).exists() else None
    if earlier is not None and earlier.complete:
        raise CliError(f"{folder} holds a complete backup: give a new folder.")
    home = folder if earlier is None else folder / _MORE
    with connect(endpoint) as connection:
        groups = BrokerGroups(connection, group_names(connection))
        if earlier is not None:
            present = {group.broker for group in earlier.groups}
            groups = groups.among([name for name in groups.names if name not in present])
            shutil.rmtree(home, ignore_errors=True)
        with new_folder(home) as temporary:
            expected = log_bytes(connection, groups)
            check_space(temporary, expected)
            with _progress("Saving", expected) as progress:
                manifest, failed = save(connection, groups, temporary, progress)
    if earlier is not None:
        manifest = add(folder, earlier, home, manifest)
    _show(folder, manifest)
    if failed:
        words = f"{len(failed)} broker groups are not saved:"
        raise CliError("\n".join([words, *failed, "Repeat the command to save them, too."]))


@backup.command()
@click.argument("folder", metavar="DIR", type=_FOLDER)
def verify(folder: Path) -> None:
    """Compare the files of the backup in DIR with its checksums, and print what it holds.

    \b
    cometmq backup verify backups/monday
    """
    manifest = read_manifest(folder)
    with _progress("Reading", total_bytes(manifest.groups)) as progress:
        check_files(folder, manifest, progress)
    _show(folder, manifest)
    click.echo("Every file has its checksum.")


@backup.command()
@click.argument("folder", metavar="DIR", type=_FOLDER)
@click.option("--data", type=_FOLDER, help="New data directory for `cometmq up`.")
@click.option(
    "--replicas",
    type=click.IntRange(1, REPLICAS_MAX),
    default=2,
    show_default=True,
    help="With --data: replicas of each group.",
)
@click.option(
    "--nameservers",
    type=click.Choice([str(number) for number in NAMESERVERS]),
    default="1",
    show_default=True,
    help="With --data: nameservers.",
)
@click.option(
    "--token-file",
    type=click.Path(path_type=Path, dir_okay=False),
    help="With --data: file with the clusterToken of the saved cluster, which encrypts the secret"
    " keys of users; required if there are users.",
)
@click.option("--store", type=_FOLDER, help="New store directory of one replica.")
@click.option("--broker", default="", metavar="NAME", help="With --store: its broker group.")
def restore(
    *,
    folder: Path,
    data: Path | None,
    replicas: int,
    nameservers: str,
    token_file: Path | None,
    store: Path | None,
    broker: str,
) -> None:
    """Make store directories from the backup in DIR, for brokers that are started then.

    With --data: a data directory for `cometmq up` with all groups. With --store: the store
    directory of one replica; give every replica of the group the same, then start the brokers with
    the brokerClusterName, brokerName and mappedFileSizeCommitLog that are printed. A restored log
    is the same byte for byte: messages keep ids, properties, queues and offsets, and consumer
    groups continue where they were.

    \b
    cometmq backup restore backups/monday --data restored
    cometmq backup restore backups/monday --broker broker-a --store store
    """
    if (data is None) == (store is None):
        raise CliError("Give either --data or --store.", Exit.USAGE)
    manifest = read_manifest(folder)
    if data is not None:
        token = _token(manifest, token_file)
        to = UpDirectory(data, replicas, int(nameservers), token)
        to.members(manifest)
        with _progress("Restoring", total_bytes(manifest.groups)) as progress:
            restore_up(folder, manifest, to, progress)
        click.echo(f"The backup is in {data}. Start the cluster: cometmq up --data {data}")
    elif store is not None:
        _restore_store(folder, manifest, broker, store)


def _restore_store(folder: Path, manifest: Manifest, broker: str, store: Path) -> None:
    names = [group.broker for group in manifest.groups]
    chosen = broker or (names[0] if len(names) == 1 else "")
    if chosen not in names:
        raise CliError(f"Give --broker with one of {', '.join(names)}.", Exit.USAGE)
    group = manifest.groups[names.index(chosen)]
    with _progress("Restoring", total_bytes([group])) as progress:
        restore_store(folder, group, store, progress)
    click.echo(f"The backup is in {store}. The broker.conf of the replica needs:")
    click.echo(f"brokerClusterName={manifest.cluster}")
    click.echo(f"brokerName={group.broker}")
    click.echo(f"mappedFileSizeCommitLog={group.segment_size}")
    if manifest.users:
        click.echo("and the authenticationKeyFile or clusterToken of the saved cluster.")


def _token(manifest: Manifest, file: Path | None) -> str:
    if file is not None:
        return file.read_text(encoding="ascii").strip()
    if manifest.users:
        raise CliError(
            "The backup has users, whose secret keys are encrypted: give --token-file with the"
            " clusterToken of the saved cluster (the file cluster-token of `cometmq up`).",
            Exit.USAGE,
        )
    return secrets.token_hex(_TOKEN_BYTES)


def _show(folder: Path, manifest: Manifest) -> None:
    click.echo(f"{folder}: cluster {manifest.cluster}, {time_text(manifest.created_ms)}")
    for group in manifest.groups:
        start, end = group.segments[0].start, group.log_end
        click.echo(f"{group.broker}: log from {start} to {end}, {len(group.segments)} segments")
    if not manifest.complete:
        click.echo("It is incomplete: broker groups are missing. Repeat `backup create`.")


@contextmanager
def _progress(label: str, total: int) -> Iterator[Callable[[int], None]]:
    """Yield a callback that takes numbers of bytes, and show their sum on a terminal's stderr."""
    done = 0
    with progress_bar(total, label, quiet=False) as show:

        def add(count: int) -> None:
            nonlocal done
            done += count
            show(done)

        yield add
