"""`scripts/promote`: failover of a static group, once or as a watch.

Once: the sequence of `static_groups.py`, like `cometmq ha failover`. `--watch` polls the leader;
when it has not answered for `--after` seconds, the most advanced replica is promoted, and the new
roles are written into the files of `--conf ID=PATH`, so that they survive restarts: the promoted
replica gets brokerId=0 and the leader's brokerRole, the old leader brokerRole=SLAVE and an unused
id (the promoted replica keeps its id until it restarts). Later promotions find the files by the
replica's uuid in the stores that they name. A returning leader of an older epoch is
fenced and pointed to the new leader.
"""

import stat
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path

import click

from ...ha.errors import DamagedStateError
from ...ha.state.replica_meta import META_NAME
from ...ha.state.slots import SlotFile
from ...operations import private_file
from ...operations.errors import CliError, Exit
from ...operations.replication import Replica, newest_state
from ...proto import paths, v1
from ...store.format.layout import REPLICA_FOLDER
from .command import where_options
from .replicas import call, find, last_set, newest_only, refresh
from .static_groups import LastSet, PromotionRequest, StaticFailover, old_leader

Say = Callable[[str], None]


def roles_after(
    conf: Mapping[int, Path], old: Replica | None, new: Replica, ids: set[int], say: Say
) -> None:
    """Write the new roles into the brokers' files; `ids` are the broker ids of the group.

    The files belong to replicas, not to ids: each promotion gives two replicas other ids.
    """
    old_file = None if old is None or old is new else file_of(conf, old)
    new_file = file_of(conf, new)
    role = "SYNC_MASTER"
    if old_file is not None and old_file != new_file:
        role = value_of(old_file, "brokerRole") or role
        taken = ids | {new.broker_id} | {_id_in(path) for path in conf.values()}
        free = next(number for number in range(1, 1 << 20) if number not in taken)
        rewrite(old_file, {"brokerId": str(free), "brokerRole": "SLAVE"})
        say(f"{old_file}: brokerId={free}, brokerRole=SLAVE")
    if new_file is not None:
        role = role if role != "SLAVE" else "SYNC_MASTER"
        rewrite(new_file, {"brokerId": "0", "brokerRole": role})
        say(f"{new_file}: brokerId=0, brokerRole={role}")


def file_of(conf: Mapping[int, Path], one: Replica) -> Path | None:
    """Return the file of a replica: the one of its store, or else of its broker id."""
    owners = {path: _uuid_in(path) for path in conf.values()}
    for path, uuid in owners.items():
        if uuid and uuid == one.uuid:
            return path
    named = conf.get(one.broker_id)
    return named if named is not None and not owners[named] else None


def _uuid_in(path: Path) -> str:
    """Return the replica uuid in the store that a broker.conf names; empty if it cannot be
    read."""
    root = value_of(path, "storePathRootDir")
    try:
        found = SlotFile(Path(root) / REPLICA_FOLDER / META_NAME, durable=False).load() or {}
    except (OSError, DamagedStateError):
        return ""
    return str(found.get("replica_uuid", "")) if root else ""


def _id_in(path: Path) -> int:
    text = value_of(path, "brokerId")
    return int(text) if text.isdigit() else 0


def value_of(path: Path, key: str) -> str:
    """Return the value of a key in a properties file; empty if it is missing."""
    for line in path.read_text(encoding="utf-8").splitlines():
        name, _, value = line.partition("=")
        if name.strip() == key:
            return value.strip()
    return ""


def rewrite(path: Path, changes: Mapping[str, str]) -> None:
    """Set keys of a properties file atomically; all other lines are kept."""
    left = dict(changes)
    lines = []
    for line in path.read_text(encoding="utf-8").splitlines():
        name = line.partition("=")[0].strip()
        lines.append(f"{name}={left.pop(name)}" if name in left else line)
    lines += [f"{name}={value}" for name, value in left.items()]
    mode = stat.S_IMODE(path.stat().st_mode)
    private_file.replace(path, "\n".join(lines) + "\n", mode)


class Watch:
    """Watches one leader; `step` is called every `--every` seconds."""

    def __init__(
        self,
        look: Callable[[], list[Replica]],
        request: PromotionRequest,
        after_s: float,
        conf: Mapping[int, Path],
        say: Say,
        *,
        last_set: LastSet,
    ) -> None:
        self._look, self._request, self._after_s = look, request, after_s
        self._conf, self._say, self._last_set = conf, say, last_set
        self._silent_since: float | None = None
        self._replicas: list[Replica] = []

    def step(self, now_s: float) -> bool:
        """Check once; True if a replica was promoted."""
        try:
            # A leader that has stopped is in no route any more; its file still names it.
            self._replicas = newest_only([*self._replicas, *self._look()])
        except CliError as error:
            self._say(f"no nameserver answers ({error}); using the known replicas")
        for one in self._replicas:
            refresh(one)
        if self._leads():
            self._silent_since = None
            return False
        if self._silent_since is None:
            self._silent_since = now_s
            self._say("the leader does not answer")
        if now_s - self._silent_since < self._after_s:
            return False
        return self._promote()

    def _leads(self) -> bool:
        """Return True if there is a leader; fence leaders of older epochs."""
        leading = [
            one for one in self._replicas if one.status is not None and one.status.role == "leader"
        ]
        if not leading:
            return False
        best = max(leading, key=lambda one: one.status.beat.last_epoch)  # type: ignore[union-attr]
        state = newest_state(self._replicas)
        for one in leading:
            if one is not best:
                self._fence_old(one, state)
        return True

    def _fence_old(self, one: Replica, state: v1.GroupState) -> None:
        """Fence a leader of an older epoch and make it follow."""
        try:
            call(one, paths.FENCE, v1.FenceRequest(epoch=state.epoch), v1.ReplicaStatus)
            call(one, paths.FOLLOW, v1.FollowRequest(state=state), v1.ControlResponse)
            self._say(f"{one.name} led an older epoch; it follows the new leader now")
        except CliError as error:
            self._say(f"{one.name} still leads an older epoch; fencing failed: {error}")

    def _promote(self) -> bool:
        state = newest_state(self._replicas)
        old = old_leader(self._replicas, state)
        run = StaticFailover(self._replicas, self._request, self._say, self._last_set)
        try:
            run.failover()
        except CliError as error:
            self._say(f"not promoted: {error}")
            return False
        self._silent_since = None
        assert run.chosen is not None
        ids = {one.broker_id for one in self._replicas}
        roles_after(self._conf, old, run.chosen, ids, self._say)
        return True


def _conf(texts: tuple[str, ...]) -> dict[int, Path]:
    found = {}
    for text in texts:
        number, _, path = text.partition("=")
        if not number.isdigit() or not Path(path).is_file():
            raise CliError(f"--conf must be ID=PATH of a broker.conf, but is '{text}'.", Exit.USAGE)
        if int(number) in found:
            raise CliError(f"--conf names broker id {number} twice.", Exit.USAGE)
        found[int(number)] = Path(path)
    return found


@click.command()
@where_options
@click.option("--to", default=-1, help="Broker id of the next leader (default: the most advanced).")
@click.option("--dead", is_flag=True, help="Confirm that the old leader's process has ended.")
@click.option(
    "--accept-loss", is_flag=True, help="Continue even if confirmed messages may be lost."
)
@click.option("--dry-run", is_flag=True, help="Print the steps without changing anything.")
@click.option(
    "--watch", is_flag=True, help="Watch the leader and promote a replica when it is lost."
)
@click.option("--once", is_flag=True, help="With --watch: exit after the first promotion.")
@click.option(
    "--after",
    default=5.0,
    show_default=True,
    help="Seconds without an answer until the leader counts as lost.",
)
@click.option("--every", default=0.5, show_default=True, help="Seconds between two checks.")
@click.option("--conf", "confs", multiple=True, metavar="ID=PATH", help="broker.conf of a replica.")
def promote(
    *,
    namesrv: str,
    group: str,
    named: tuple[str, ...],
    to: int,
    dead: bool,
    accept_loss: bool,
    dry_run: bool,
    watch: bool,
    once: bool,
    after: float,
    every: float,
    confs: tuple[str, ...],
) -> None:
    """Promote the most advanced replica of a static group."""
    conf = _conf(confs)
    request = PromotionRequest(to=to, accept_loss=accept_loss, leader_is_dead=dead, dry_run=dry_run)

    def say(step: str) -> None:
        click.echo(f"- {step}")
        sys.stdout.flush()

    def look() -> list[Replica]:
        replicas, report = find(namesrv, group, named)
        if report is not None:
            raise CliError(f"Group {report.state.group} has a controller: use `cometmq ha`.")
        return replicas

    replicas = look()

    registered = last_set(namesrv, replicas, named)
    if watch:
        watcher = Watch(look, request, after, conf, say, last_set=registered)
        while not (watcher.step(time.monotonic()) and once):
            time.sleep(every)
        return
    for one in replicas:
        refresh(one)
    old = old_leader(replicas, newest_state(replicas))
    run = StaticFailover(replicas, request, say, registered)
    run.failover()
    if run.chosen is not None:
        ids = {one.broker_id for one in replicas}
        roles_after(conf, old, run.chosen, ids, say)


def main() -> int:
    """Run the command with the exit codes of the command line."""
    try:
        promote.main(prog_name="scripts/promote", standalone_mode=False)
    except CliError as error:
        click.echo(f"promote: {error}", err=True)
        return error.code
    except click.ClickException as error:
        error.show()
        return error.exit_code
    except (click.Abort, KeyboardInterrupt):
        return 130
    return Exit.DONE


if __name__ == "__main__":
    sys.exit(main())
