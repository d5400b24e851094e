"""`scripts/promote`: the decider of a static group, once or as a watch.

Once: the sequence of `static_groups.py` (`cometmq ha failover` does the same). `--watch` asks the leader again and again; when
it has been silent for `--after` seconds it promotes the most advanced replica, and writes the new roles into the
files that `--conf ID=PATH` names, so that they outlive restarts: the promoted replica gets brokerId=0 and
the leader's brokerRole, the old leader brokerRole=SLAVE and an id that nobody uses (the promoted one keeps its number until it
restarts). A leader of an older epoch that comes back is fenced and told whom to follow.
"""

import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path

import click

from ...proto import paths, v1
from ..errors import CliError, Exit
from .command import where_options
from .doors import Replica, find
from .static_groups import PromotionRequest, StaticFailover, newest_state, old_leader

Say = Callable[[str], None]


def roles_after(
    conf: Mapping[int, Path], old_id: int, new_id: int, everybody: set[int], say: Say
) -> None:
    """Write who is what into the brokers' files."""
    role = "SYNC_MASTER"
    if old_id in conf and old_id != new_id:
        role = value_of(conf[old_id], "brokerRole") or role
        free = next(number for number in range(1, 1 << 20) if number not in everybody | {new_id})
        rewrite(conf[old_id], {"brokerId": str(free), "brokerRole": "SLAVE"})
        say(f"{conf[old_id]}: brokerId={free}, brokerRole=SLAVE")
    if new_id in conf:
        role = role if role != "SLAVE" else "SYNC_MASTER"
        rewrite(conf[new_id], {"brokerId": "0", "brokerRole": role})
        say(f"{conf[new_id]}: brokerId=0, brokerRole={role}")


def value_of(path: Path, key: str) -> str:
    """A key's value in a properties file; empty when it is not there."""
    for line in path.read_text(encoding="utf-8").splitlines():
        name, _, value = line.partition("=")
        if name.strip() == key:
            return value.strip()
    return ""


def rewrite(path: Path, changes: Mapping[str, str]) -> None:
    """Set keys of a properties file; everything else stays as it is, byte by byte. Atomic."""
    left = dict(changes)
    lines = []
    for line in path.read_text(encoding="utf-8").splitlines():
        name = line.partition("=")[0].strip()
        lines.append(f"{name}={left.pop(name)}" if name in left else line)
    lines += [f"{name}={value}" for name, value in left.items()]
    new = path.with_name(path.name + ".new")
    new.write_text("\n".join(lines) + "\n", encoding="utf-8")
    new.replace(path)


class Watch:
    """Watches one leader; `step` is called every `--every` seconds."""

    def __init__(
        self,
        look: Callable[[], list[Replica]],
        wish: PromotionRequest,
        after_s: float,
        conf: Mapping[int, Path],
        say: Say,
    ) -> None:
        self._look, self._wish, self._after_s = look, wish, after_s
        self._conf, self._say = conf, say
        self._silent_since: float | None = None
        self._replicas: list[Replica] = []

    def step(self, now_s: float) -> bool:
        """Look once; True when somebody was promoted."""
        try:
            self._replicas = self._look() or self._replicas
        except CliError as error:
            self._say(f"no nameserver answers ({error}); going on with the replicas that are known")
        for one in self._replicas:
            one.ask()
        if self._leads():
            self._silent_since = None
            return False
        if self._silent_since is None:
            self._silent_since = now_s
            self._say("the leader is silent")
        if now_s - self._silent_since < self._after_s:
            return False
        return self._promote()

    def _leads(self) -> bool:
        """Somebody leads; whoever else believes so, with an older epoch, is put right."""
        leading = [
            one for one in self._replicas if one.status is not None and one.status.role == "leader"
        ]
        if not leading:
            return False
        best = max(leading, key=lambda one: one.status.beat.last_epoch)  # type: ignore[union-attr]
        state = newest_state(self._replicas)
        for one in leading:
            if one is not best:
                self._put_right(one, state)
        return True

    def _put_right(self, one: Replica, state: v1.GroupState) -> None:
        """A leader of the past has come back."""
        try:
            one.call(paths.FENCE, v1.FenceRequest(epoch=state.epoch), v1.ReplicaStatus)
            one.call(paths.FOLLOW, v1.FollowRequest(state=state), v1.ControlResponse)
            self._say(f"{one.name} led an older epoch; it follows now")
        except CliError as error:
            self._say(f"{one.name} leads an older epoch and cannot be fenced: {error}")

    def _promote(self) -> bool:
        state = newest_state(self._replicas)
        old = old_leader(self._replicas, state)
        run = StaticFailover(self._replicas, self._wish, self._say)
        try:
            run.failover()
        except CliError as error:
            self._say(f"not promoted: {error}")
            return False
        self._silent_since = None
        assert run.chosen is not None
        everybody = {one.broker_id for one in self._replicas}
        roles_after(
            self._conf, old.broker_id if old else -1, run.chosen.broker_id, everybody, self._say
        )
        return True


def _conf(texts: tuple[str, ...]) -> dict[int, Path]:
    found = {}
    for text in texts:
        number, _, path = text.partition("=")
        if not number.isdigit() or not Path(path).is_file():
            raise CliError(f"--conf must be ID=PATH of a broker.conf, but is '{text}'.", Exit.USAGE)
        found[int(number)] = Path(path)
    return found


@click.command()
@where_options
@click.option("--to", default=-1, help="Broker id of the next leader; otherwise the most advanced.")
@click.option("--dead", is_flag=True, help="The old leader's process is dead: you are sure.")
@click.option("--accept-loss", is_flag=True, help="Go on although confirmed messages may be lost.")
@click.option("--dry-run", is_flag=True, help="Print the steps and change nothing.")
@click.option("--watch", is_flag=True, help="Watch the leader and promote when it is lost.")
@click.option("--once", is_flag=True, help="With --watch: end after the first promotion.")
@click.option(
    "--after", default=5.0, show_default=True, help="Seconds of silence that count as lost."
)
@click.option("--every", default=0.5, show_default=True, help="Seconds between two looks.")
@click.option("--conf", "confs", multiple=True, metavar="ID=PATH", help="broker.conf of a replica.")
def promote(
    *, namesrv: str, group: str, named: tuple[str, ...], to: int, dead: bool, accept_loss: bool, dry_run: bool,
    watch: bool, once: bool, after: float, every: float, confs: tuple[str, ...],
) -> None:  # fmt: skip
    """Promote the most advanced replica of a static group."""
    conf = _conf(confs)
    wish = PromotionRequest(to=to, accept_loss=accept_loss, leader_is_dead=dead, dry_run=dry_run)

    def say(step: str) -> None:
        click.echo(f"- {step}")
        sys.stdout.flush()

    def look() -> list[Replica]:
        replicas, report = find(namesrv, group, named)
        if report is not None:
            raise CliError(
                f"Group {report.state.group} has a controller: it decides (`cometmq ha`)."
            )
        return replicas

    replicas = look()
    if watch:
        watcher = Watch(look, wish, after, conf, say)
        while not (watcher.step(time.monotonic()) and once):
            time.sleep(every)
        return
    for one in replicas:
        one.ask()
    old = old_leader(replicas, newest_state(replicas))
    run = StaticFailover(replicas, wish, say)
    run.failover()
    if run.chosen is not None:
        everybody = {one.broker_id for one in replicas}
        roles_after(conf, old.broker_id if old else -1, run.chosen.broker_id, everybody, say)


def main() -> int:
    """Run it, with the exit codes of the command line."""
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
