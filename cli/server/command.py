"""`cometmq namesrv`, `cometmq broker`, `cometmq single`: one server process each.

Every setting of the configuration dataclasses is a flag; `config/loader.py` defines precedence and
origins, `process.py` runs the process. The server's modules are imported before the process waits
for the supervisor's first line, so that processes that need each other's ports start in parallel.
"""

import importlib
import logging
import os
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, TypeVar

import click

from ...nodes.addresses import is_loopback
from ...operations.errors import CliError, Exit
from ...operations.private_file import PRIVATE_UMASK, restrict
from ..config.loader import Loaded, as_text, load, schema
from ..config.sources import broker_owners, namesrv_owners
from ..loading import loading
from ..times import duration
from .console_config import ConsoleConfig
from .logs import LogConfig, adopt, configure_logging

logger = logging.getLogger(__name__)

F = TypeVar("F", bound=Callable[..., Any])

_GRACE = "5s"


def settings_options(owners: Iterable[type]) -> Callable[[F], F]:
    """Add one flag for each setting; the loader converts and checks the values."""

    def decorate(command: F) -> F:
        for setting in reversed(schema(owners).values()):
            unit = f" ({setting.unit})" if setting.unit else ""
            default = as_text(setting.default) or "empty"
            command = click.option(
                setting.flag,
                setting.field,
                metavar="VALUE",
                help=f"{setting.help}{unit} [{setting.key}; default: {default}]",
            )(command)
        return command

    return decorate


def process_options(command: F) -> F:
    """Add the options of every server process."""
    path = click.Path(path_type=Path)
    for option in (
        click.option("--report-fd", type=int, hidden=True),
        click.option("--supervised", is_flag=True, hidden=True),
        click.option(
            "--grace",
            type=duration("s", most="10m"),
            default=_GRACE,
            show_default=True,
            metavar="DURATION",
            help="Drain this long when the process is stopped, as 500ms or in seconds.",
        ),
        click.option(
            "--log-dir", type=path, help="Directory for rotated log files (default: log to stderr)."
        ),
        click.option("--strict", is_flag=True, help="Treat unknown settings as errors."),
        click.option("-c", "--config", "file", type=path, help="Configuration file."),
    ):
        command = option(command)
    return command


class Process:
    """The options of `process_options`, taken out of a command's arguments."""

    def __init__(self, name: str, arguments: dict[str, Any]) -> None:
        from .process import Supervision

        self.name = name
        self.file: Path | None = arguments.pop("file")
        self.strict: bool = arguments.pop("strict")
        self.grace_s: float = arguments.pop("grace") / 1_000
        self.supervision = Supervision(arguments.pop("supervised"), arguments.pop("report_fd"))
        self.log_dir: Path | None = arguments.pop("log_dir")
        self.flags = {name: text for name, text in arguments.items() if text is not None}
        if "log_level" in self.flags:
            self.flags["log_level"] = self.flags["log_level"].upper()

    def run(self, make: Callable[["Process"], Any], modules: tuple[str, ...]) -> None:
        """Import the modules, wait for the supervisor's flags, create and run the server."""
        from .process import run_server, start_or_explain

        def body() -> None:
            os.umask(PRIVATE_UMASK)
            configure_logging(self.log_dir, self.name, self._log_config())
            check_limits(self.name)
            with loading():
                for module in modules:
                    importlib.import_module(f"...{module}", __package__)
            self.flags.update(self.supervision.late_flags())
            reload = self._reload if self.file is not None else None
            run_server(make(self), self.supervision, self.grace_s, reload)

        start_or_explain(self.name, self.supervision, body, _expected_errors)

    def _log_config(self) -> LogConfig:
        """Return the settings of the logs; `load` reports what else is in the file."""
        names = ("log_level", "log_format")
        flags = {name: text for name, text in self.flags.items() if name in names}
        return load([LogConfig], file=self.file, flags=flags).config(LogConfig)

    def _reload(self) -> None:
        """Adopt the settings of the logs from the changed file."""
        try:
            config = self._log_config()
        except CliError as error:
            logger.warning("log.not_reloaded reason=%s", error)
            return
        adopt(config)
        logger.info("log.reloaded level=%s format=%s", config.log_level, config.log_format)

    def load(self, owners: list[type], elsewhere: list[type], file: Path | None) -> Loaded:
        """Load the configuration; log warnings and notices."""
        fields = {setting.field for setting in schema(owners).values()}
        flags = {name: text for name, text in self.flags.items() if name in fields}
        loaded = load(owners, file=file, flags=flags, strict=self.strict, elsewhere=elsewhere)
        for config in loaded.configs.values():
            _check_open(config)
        for sentence in loaded.warnings:
            logger.warning("config.not_used %s", sentence)
        # `single` runs both servers, so no setting belongs to another process.
        foreign = loaded.elsewhere if self.name != "single" else ()
        for sentence in (*loaded.notices, *foreign):
            logger.info("config.ignored %s", sentence)
        return loaded


def check_limits(name: str) -> None:
    """Raise RLIMIT_NOFILE to its hard limit. Raises CliError for limits below the minimum."""
    from ...front.limits import NEEDS, lack, limits_of_process, sized, told
    from ...front.process import raise_descriptor_limit

    raise_descriptor_limit()
    limits, needs = limits_of_process(), NEEDS[name]
    if sentence := lack(name, limits, needs):
        raise CliError(sentence)
    logger.info(
        "process.limits descriptors=%s descriptors_min=%d memory=%s memory_min=%s",
        told(limits.descriptors),
        needs.descriptors,
        sized(limits.memory_bytes),
        sized(needs.memory_bytes),
    )


def _check_segments(store: Any) -> None:
    """Raise CliError for a store that does not fit the limits of the process."""
    from ...front.limits import lack_for_segments, limits_of_process

    size = store.mapped_file_size_commit_log
    segments = sum(len(list(path.glob("[0-9]*"))) for path in store.commit_log_directories)
    pool = store.transient_store_pool_size * store.transient_store_pool_enable
    locked = (pool + 2 * store.lock_maped_file_enable) * size
    if sentence := lack_for_segments(limits_of_process(), size, segments, locked):
        raise CliError(sentence)


def _check_open(config: Any) -> None:
    """Raise CliError if a server would serve everyone on other machines without a decision."""
    address = getattr(config, "bind_address", None)
    if address is None or config.authentication_enabled or config.allow_anonymous:
        return
    if not is_loopback(address):
        raise CliError(
            f"bindAddress={address} with authentication off lets everyone who reaches this machine "
            "read and change everything: set authenticationEnabled=true, or "
            "bindAddress=127.0.0.1, or allowAnonymous=true.",
            Exit.USAGE,
        )


def _expected_errors() -> tuple[type[Exception], ...]:
    """Return the errors of a start whose text is a sentence for the operator."""
    from ...front.errors import DoorError
    from ...ha.errors import HaError
    from ...nameserver.known_groups import DirectoryLockedError
    from ...store.format.errors import StoreError

    return (DoorError, HaError, DirectoryLockedError, StoreError)


@click.command()
@process_options
@settings_options(namesrv_owners())
def namesrv(**arguments: Any) -> None:
    """Run a nameserver: brokers register with it, clients can query routes.

    \b
    cometmq namesrv -c namesrv.conf
    """
    Process("namesrv", arguments).run(_Namesrv, ("nameserver.server",))


@click.command()
@process_options
@settings_options(broker_owners())
def broker(**arguments: Any) -> None:
    """Run one replica of a broker group.

    \b
    cometmq broker -c broker.conf
    """
    Process("broker", arguments).run(_Broker, ("broker.server",))


@click.command()
@click.option(
    "--namesrv-config",
    type=click.Path(path_type=Path),
    help="Configuration file of the nameserver.",
)
@process_options
@settings_options([*broker_owners(), *namesrv_owners()])
def single(namesrv_config: Path | None, **arguments: Any) -> None:
    """Run a nameserver and one broker in this process.

    \b
    cometmq single -c broker.conf
    """
    process = Process("single", arguments)
    process.run(
        lambda process: _Single(process, namesrv_config), ("broker.server", "nameserver.server")
    )


class _Namesrv:
    """The nameserver as a `process.Server`."""

    def __init__(self, process: Process, file: Path | None = None) -> None:
        from ...front.config import DoorConfig
        from ...nameserver.config import NameserverConfig
        from ...nameserver.server import NameserverServer
        from ...nodes.tls_config import TlsConfig

        loaded = process.load(namesrv_owners(), broker_owners(), file or process.file)
        config = loaded.config(NameserverConfig)
        self._bound = ""
        self.server = NameserverServer(
            config, door=loaded.config(DoorConfig), tls=loaded.config(TlsConfig)
        )

    async def start(self) -> Mapping[str, Any]:
        self._bound = await self.server.start()
        metrics = self.server.metrics_address
        remoting = self.server.remoting_address
        return {
            "namesrv": self._bound,
            **({"namesrv_metrics": metrics} if metrics else {}),
            **({"namesrv_remoting": remoting} if remoting else {}),
        }

    async def stop(self, grace_s: float) -> None:
        await self.server.stop(grace_s)

    def state(self) -> Mapping[str, Any] | None:
        return None

    async def notify(self, event: Mapping[str, Any]) -> None:
        """Report to the controller that a broker's process has ended: it elects at once."""
        from .exit_notice import report_exit

        await report_exit(self._bound, self.server.links, event)


class _Broker:
    """The broker as a `process.Server`."""

    def __init__(self, process: Process) -> None:
        from ...broker.base.config import BrokerConfig
        from ...broker.server import BrokerServer
        from ...front.config import DoorConfig
        from ...ha.config import HaConfig
        from ...nodes.tls_config import TlsConfig
        from ...store.config.store_config import StoreConfig
        from .console_process import ConsoleProcess

        loaded = process.load(broker_owners(), namesrv_owners(), process.file)
        store = loaded.config(StoreConfig)
        os.umask(store.umask)
        restrict((store.root, *store.commit_log_directories), store.umask)
        _check_segments(store)
        ha = loaded.config(HaConfig)
        self._console = ConsoleProcess(loaded.config(ConsoleConfig))
        self._elected: bool = ha.enable_controller_mode
        self.server = BrokerServer(
            loaded.config(BrokerConfig),
            store,
            ha,
            loaded.config(DoorConfig),
            tls=loaded.config(TlsConfig),
            origins={key: value.origin for key, value in loaded.values.items()},
            on_fatal=_end_process,
        )

    async def start(self) -> Mapping[str, Any]:
        bound = await self.server.start()
        self._console.start(bound.client)
        return {
            "client": bound.client,
            "ha": bound.ha,
            "metrics": bound.metrics,
            "door": bound.door,
            **({"remoting": bound.remoting} if bound.remoting else {}),
        }

    async def stop(self, grace_s: float) -> None:
        await self._console.stop()
        await self.server.stop(grace_s)

    def state(self) -> Mapping[str, Any] | None:
        if not self.server.alive:
            return None  # between two instances
        node = self.server.broker
        identity = node.replication.identity
        me = {
            "cluster": identity.cluster,
            "group": identity.group,
            "broker_id": identity.broker_id,
            "incarnation": node.replication.replica.meta.incarnation,
        }
        # The groups whose leaders it knows: calls to them are forwarded.
        led = [name for name, group in node.cluster.groups.items() if group.leader()]
        if not node.leadership.is_leader:
            refused = node.replication.refused or ""
            if refused.startswith("NOT_LEADER") and self._elected:
                refused = ""  # its former leader; the controller sends the new one
            return {"role": "follower", "replica": me, "led": led, "refused": refused}
        rows = node.replication.members()
        return {
            "role": "leader",
            "replica": me,
            "led": led,
            "in_sync": sum(row.in_sync for row in rows),
            "replication": "sync" if node.replication.policy.sync else "async",
            "flush": "sync" if node.leadership.policy.sync_flush else "async",
            "write_refusal": node.leadership.write_refusal() or "",
        }


def _end_process(reason: str) -> None:
    """End the process after a fatal error (a failing disk); the supervisor may restart it."""
    logger.error("process.fatal reason=%s", reason)
    logging.shutdown()
    os._exit(Exit.FAILED)


class _Single:
    """A nameserver and a broker in one loop; the broker registers with that nameserver."""

    def __init__(self, process: Process, namesrv_file: Path | None) -> None:
        self._process = process
        self._namesrv = _Namesrv(process, namesrv_file)
        self._broker: _Broker | None = None

    async def start(self) -> Mapping[str, Any]:
        bound = await self._namesrv.start()
        try:
            port = str(bound["namesrv"]).rpartition(":")[2]
            self._process.flags["namesrv_addr"] = f"127.0.0.1:{port}"
            self._broker = _Broker(self._process)
            return {**bound, **await self._broker.start()}
        except BaseException:
            await self._namesrv.stop(0.0)
            raise

    async def stop(self, grace_s: float) -> None:
        if self._broker is not None:
            await self._broker.stop(grace_s)
        await self._namesrv.stop(grace_s)

    def state(self) -> Mapping[str, Any] | None:
        return self._broker.state() if self._broker is not None else None
