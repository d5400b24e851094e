"""The processes of `cometmq up`, with their files and flags.

`shape.py` has their names, `ports.py` their ports. Options of the command line become flags of the
processes and override their files; all other settings come from the files. With `--port 0` ports
are passed only as flags, so that the files of a short-lived cluster do not fix port 0; several
nameservers must know each other before they start, so their ports are reserved.

With a controller (the default) the nameservers elect the leaders, at first the masters;
`brokerRole=SLAVE` then means "as the group's policy". `COMETMQ_ENABLE_CONTROLLER_MODE=false` and
`--no-controller` give fixed roles.
"""

import json
import os
import socket
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from ...operations.errors import CliError, Exit
from . import ports
from .layout import DataDirectory, read_settings
from .ports import BROKER_FLAGS, HOST, BrokerPorts
from .shape import GROUPS_MAX, Member, Shape, chosen_shape, existing_shape

_PORTS_END = 65_536
_SINGLE = Member("single", "broker-a", 0)

_REMOTING = "remotingListenPort"
_SEGMENT_SIZE = "mappedFileSizeCommitLog"
# Of a new cluster: a broker allocates up to three segments at once, on a laptop.
_SMALL_SEGMENT = str(64 << 20)
# Chosen by the system, for a process that would take 0 for "off".
_ANY_PORT = "-1"

#: Flag of a process -> key of its file, for everything that `up` sets by flags.
KEYS = {
    "grpc_server_port": "grpcServerPort",
    "ha_listen_port": "haListenPort",
    "metrics_prom_exporter_port": "metricsPromExporterPort",
    "listen_port": "listenPort",
    "namesrv_metrics_port": "namesrvMetricsPort",
    "namesrv_addr": "namesrvAddr",
    "broker_role": "brokerRole",
    "flush_disk_type": "flushDiskType",
    "remoting_listen_port": _REMOTING,
}


@dataclass(frozen=True, slots=True)
class Options:
    """The options of the command line; None if omitted."""

    port: int | None
    single: bool
    replication: str | None
    flush: str | None
    #: The nameserver elects the leader; without it roles are fixed.
    controller: bool = False
    #: Switch authentication and authorization on, with the user `admin`.
    auth: bool = False
    groups: int | None = None
    replicas: int | None = None
    nameservers: int | None = None
    log_format: str | None = None
    #: Serve classic clients.
    remoting: bool = False
    #: Port of the web console, which the first broker runs; None: there is none.
    console_port: int | None = None


@dataclass(slots=True)
class Plan:
    """One process: its files and flags, and the ports that it bound."""

    name: str
    role: str
    subcommand: str
    data: Path
    files: dict[str, Path]
    #: Flags of the command line, and the bound ports, so that a restart keeps them.
    flags: dict[str, str]
    #: Keys and values of its configuration file.
    file_values: Mapping[str, str]
    #: The nameserver's port is not known yet; it is sent as a late flag.
    needs_namesrv: bool = False
    #: The broker group by the options; empty for a nameserver.
    group: str = ""
    #: Keeps the port of a nameserver free until it listens.
    reserved: socket.socket | None = None
    ports: dict[str, int] = field(default_factory=dict)

    def value(self, flag: str) -> str:
        """Return the effective value: the flag, or else the file's value."""
        return self.flags.get(flag) or self.file_values.get(KEYS[flag], "")

    @property
    def replica(self) -> str:
        """The name by broker group and id, which stays right when roles change; empty for a
        nameserver."""
        return f"{self.group}-{self.file_values.get('brokerId', 0)}" if self.group else ""

    def arguments(self) -> list[str]:
        """Return the arguments of the `cometmq` command."""
        words = [self.subcommand]
        for option, file in self.files.items():
            words += [option, str(file)]
        words += ["--log-dir", str(self.data / "log")]
        for flag, text in self.flags.items():
            words += ["--" + flag.replace("_", "-"), text]
        return words

    def keep_ports(self, bound: Mapping[str, str]) -> None:
        """Store the bound ports, so that a restart uses them again."""
        flags = {
            "client": "grpc_server_port",
            "ha": "ha_listen_port",
            "metrics": "metrics_prom_exporter_port",
            "namesrv": "listen_port",
            "namesrv_metrics": "namesrv_metrics_port",
            "remoting": "remoting_listen_port",
            "namesrv_remoting": "remoting_listen_port",
        }
        for name, flag in flags.items():
            port = str(bound.get(name, "")).rpartition(":")[2]
            if port.isdigit():
                self.ports[name] = int(port)
                if self.subcommand != "single" or flag != "remoting_listen_port":
                    # The nameserver and the broker of one process have this flag in common.
                    self.flags[flag] = port


def make_plans(data: DataDirectory, options: Options) -> list[Plan]:
    """Write missing files and return the plans, the nameservers first. Raises CliError."""
    _check_kind(data, options)
    shape = (
        Shape(1, 1, 1)
        if options.single
        else chosen_shape(data.path, options.groups, options.replicas, options.nameservers)
    )
    if shape.replicas == 1 and options.replication == "sync":
        raise CliError(
            "A group of one replica has none to wait for: omit --replication, or start with"
            " --replicas 2.",
            Exit.USAGE,
        )
    size = ports.block_size(shape)
    if options.port and options.port + size > _PORTS_END:
        raise CliError(
            f"--port {options.port} needs {size} ports, up to {_PORTS_END - 1}: give a lower one.",
            Exit.USAGE,
        )
    token = data.token()
    if options.single:
        plans = [_single(data, options, token, shape)]
    else:
        plans = _nameservers(data, options, token, shape)
        plans += _brokers(data, options, token, shape, _namesrv_addresses(plans))
    for plan in plans if options.log_format else ():
        plan.flags["log_format"] = str(options.log_format)
    if options.console_port is not None:
        first = next(plan for plan in plans if plan.group)
        first.flags |= {
            "console": "true",
            "console_port": str(options.console_port),
            "console_allow_changes": "true",
            # For the story of a message.
            "trace_topic_enable": "true",
        }
    return plans


def plans_of_another_group(
    data: DataDirectory, options: Options, running: Sequence[Plan]
) -> list[Plan]:
    """Write the files of one more broker group of a running cluster; return its plans.

    Its ports are the next usual ones, or with `--port` free ones. Raises CliError.
    """
    here = existing_shape(data.path)
    if options.single or here is None:
        raise CliError("A cluster of --single has one group: start one without.", Exit.USAGE)
    if here.groups == GROUPS_MAX:
        raise CliError(f"The cluster has {GROUPS_MAX} groups, which is the limit.", Exit.USAGE)
    shape = replace(here, groups=here.groups + 1)
    chosen = options if options.port is None else replace(options, port=0)
    nameservers = [f"{HOST}:{plan.ports['namesrv']}" for plan in running if not plan.group]
    known = {plan.name for plan in running}
    plans = _brokers(data, chosen, data.token(), shape, nameservers)
    return [plan for plan in plans if plan.name not in known]


def _check_kind(data: DataDirectory, options: Options) -> None:
    """Raise CliError if the directory has a cluster with --single, or without it, and it is not
    the requested one: it would be hidden by an empty one."""
    single = (data.path / _SINGLE.name / "store").exists()
    several = existing_shape(data.path) is not None
    if options.single and several and not single:
        raise CliError(
            f"The cluster in {data.path} has several processes: omit --single, or give another"
            " directory with --data.",
            Exit.USAGE,
        )
    if single and not options.single and not several:
        raise CliError(
            f"The cluster in {data.path} was made with --single: add --single, or give another"
            " directory with --data.",
            Exit.USAGE,
        )


def _nameservers(data: DataDirectory, options: Options, token: str, shape: Shape) -> list[Plan]:
    plans = []
    numbers = _namesrv_ports(options, shape)
    for name in shape.namesrv_names():
        home = data.path / name
        file, found, flags = _namesrv_file(data, options, token, home, next(numbers))
        plans.append(Plan(name, "nameserver", "namesrv", home, {"--config": file}, flags, found))
    if len(plans) == 1:
        return plans
    for plan in plans if options.port == 0 else ():
        plan.reserved = ports.reserve()
        plan.flags["listen_port"] = str(plan.reserved.getsockname()[1])
    for plan in plans if options.controller else ():
        # Not in the file, like `controller`.
        plan.flags["controller_peers"] = ",".join(
            _namesrv_addresses([peer for peer in plans if peer is not plan])
        )
    return plans


def _namesrv_ports(options: Options, shape: Shape) -> Iterator[tuple[int, int]]:
    """Yield the ports of the nameservers: of their service and of their metrics."""
    if options.port:
        metrics = ports.block_nameserver_metrics(options.port, shape)
        return zip(ports.block_nameservers(options.port), metrics, strict=False)
    return zip(ports.usual_nameservers(), ports.usual_nameserver_metrics(), strict=False)


def _remoting(options: Options, port: str) -> tuple[dict[str, str], dict[str, str]]:
    """Return the keys of the file and the flags of the process for classic clients.

    Their port is `port`, that of gRPC clients; if the system chooses ports, they have their own.
    """
    if not options.remoting:
        return {}, {}
    if options.port == 0:
        return {}, {"remoting_listen_port": _ANY_PORT}
    # A flag only if it overrides the file, and not in one process: see `Plan.keep_ports`.
    is_flag = options.port is not None and not options.single
    return {_REMOTING: port}, {"remoting_listen_port": port} if is_flag else {}


def _namesrv_addresses(plans: list[Plan]) -> list[str]:
    """Return the addresses; none if they are not known before the start."""
    numbers = [plan.value("listen_port") for plan in plans]
    return [] if "0" in numbers else [f"{HOST}:{number}" for number in numbers]


def _namesrv_file(
    data: DataDirectory,
    options: Options,
    token: str,
    home: Path,
    numbers: tuple[int, int],
) -> tuple[Path, dict[str, str], dict[str, str]]:
    file = home / "namesrv.conf"
    wanted = {"bindAddress": HOST, "clusterToken": token, "namesrvDataDir": str(home / "routes")}
    flags = {}
    chosen = dict(zip(("listen_port", "namesrv_metrics_port"), map(str, numbers), strict=True))
    if options.port is not None:
        flags.update(chosen if options.port else dict.fromkeys(chosen, "0"))
    if options.controller:
        flags["controller"] = "true"
    if options.auth:
        flags["authentication_enabled"] = "true"
    if options.port != 0:
        wanted.update({KEYS[flag]: port for flag, port in chosen.items()})
    keys, more = _remoting(options, _port_of(options, file, "listen_port", numbers[0]))
    wanted.update(keys)
    flags.update(more)
    found = data.configure(file, wanted, "A nameserver of `cometmq up`.")
    return file, found, flags


def _brokers(
    data: DataDirectory, options: Options, token: str, shape: Shape, nameservers: list[str]
) -> Iterator[Plan]:
    usual = "sync" if shape.replicas > 1 else "async"
    members = list(shape.members())
    numbers = _broker_ports(data, options, members, shape)
    for member, chosen in zip(members, numbers, strict=True):
        home = data.path / member.name
        file, found, flags = _broker_file(
            data,
            options,
            token,
            member,
            chosen=chosen,
            namesrv=";".join(nameservers),
            usual_replication=usual,
        )
        yield Plan(
            member.name,
            member.role,
            "broker",
            home,
            {"--config": file},
            flags,
            found,
            needs_namesrv=not nameservers,
            group=member.group,
        )


def _port_of(options: Options, file: Path, flag: str, chosen: int) -> str:
    """Return the port of gRPC clients: the chosen one, or without `--port` the one of the file."""
    found = read_settings(file).get(KEYS[flag], "") if options.port is None else ""
    return found or str(chosen)


def _broker_ports(
    data: DataDirectory, options: Options, members: list[Member], shape: Shape
) -> list[BrokerPorts]:
    """Return the ports of the brokers; without `--port`, of those whose files name none."""
    if options.port:
        block = ports.block_brokers(options.port, shape.nameservers)
        return [next(block) for _ in members]
    keys = [KEYS[flag] for flag in BROKER_FLAGS]
    files = [read_settings(data.path / member.name / "broker.conf") for member in members]
    taken = {file[key] for file in files for key in keys if key in file}
    free = (chosen for chosen in ports.usual_brokers() if taken.isdisjoint(map(str, chosen)))
    complete = (0, 0, 0)  # not used: the file has all three
    return [complete if file.keys() >= set(keys) else next(free) for file in files]


def _single(data: DataDirectory, options: Options, token: str, shape: Shape) -> Plan:
    home = data.path / _SINGLE.name
    numbers = next(_namesrv_ports(options, shape))
    (chosen,) = _broker_ports(data, options, [_SINGLE], shape)
    # The process sets the address itself, after its nameserver has bound a port.
    namesrv = "" if options.port == 0 else f"{HOST}:{numbers[0]}"
    file, found, flags = _broker_file(
        data,
        options,
        token,
        _SINGLE,
        chosen=chosen,
        namesrv=namesrv,
        usual_replication="async",
    )
    namesrv_file, _, namesrv_flags = _namesrv_file(data, options, token, home, numbers)
    files = {"--config": file, "--namesrv-config": namesrv_file}
    return Plan(
        _SINGLE.name,
        "master",
        "single",
        home,
        files,
        {**flags, **namesrv_flags},
        found,
        group=_SINGLE.group,
    )


def _broker_file(
    data: DataDirectory,
    options: Options,
    token: str,
    member: Member,
    *,
    chosen: BrokerPorts,
    namesrv: str,
    usual_replication: str,
) -> tuple[Path, dict[str, str], dict[str, str]]:
    home = data.path / member.name
    wanted = {
        "brokerClusterName": "DefaultCluster",
        "brokerName": member.group,
        "brokerId": str(member.broker_id),
        "brokerRole": _role(options.replication or usual_replication, member),
        "flushDiskType": f"{(options.flush or 'async').upper()}_FLUSH",
        "brokerIP1": HOST,
        "bindAddress": HOST,
        "storePathRootDir": str(home / "store"),
        "clusterToken": token,
    }
    numbers = dict(zip(BROKER_FLAGS, map(str, chosen), strict=True))
    flags: dict[str, str] = {}
    if options.port == 0:
        flags.update(dict.fromkeys(numbers, "0"))
    else:
        wanted.update({KEYS[flag]: port for flag, port in numbers.items()})
        wanted.update({"namesrvAddr": namesrv} if namesrv else {})
    if options.port:
        flags.update(numbers)
    if options.port is not None and namesrv:
        flags["namesrv_addr"] = namesrv
    if options.replication:
        flags["broker_role"] = _role(options.replication, member)
    # Not in the file: the option may change from one start to the next.
    if options.controller and not _set_by_environment():
        flags["enable_controller_mode"] = "true"
    if options.auth:
        access_key, secret_key = data.admin()
        first = {"username": access_key, "password": secret_key}
        wanted["initAuthenticationUser"] = json.dumps(first)
        wanted["auditLogFile"] = str(home / "log" / "audit.log")
        wanted["auditTopicEnable"] = "true"
        flags["authentication_enabled"] = flags["authorization_enabled"] = "true"
    file = home / "broker.conf"
    wanted.update(_segment_size(data, file))
    keys, more = _remoting(options, _port_of(options, file, "grpc_server_port", chosen[0]))
    wanted.update(keys)
    flags.update(more)
    if options.flush:
        flags["flush_disk_type"] = f"{options.flush.upper()}_FLUSH"
    found = data.configure(file, wanted, f"The broker `{home.name}` of `cometmq up`.")
    return file, found, flags


def _segment_size(data: DataDirectory, file: Path) -> dict[str, str]:
    """Return the key of a new broker's file: replicas, and so all brokers here, have one size."""
    if file.exists():
        return {}
    for other in sorted(data.path.glob(f"*/{file.name}")):
        found = read_settings(other)
        return {key: found[key] for key in (_SEGMENT_SIZE,) if key in found}
    return {_SEGMENT_SIZE: _SMALL_SEGMENT}


def _role(replication: str, member: Member) -> str:
    return "SLAVE" if member.broker_id else f"{replication.upper()}_MASTER"


def _set_by_environment() -> bool:
    """Return True if the environment sets the controller mode; a flag would override it."""
    return "COMETMQ_ENABLE_CONTROLLER_MODE" in os.environ
