"""The processes of `cometmq up`, with their files and flags.

Ports: clients 8081 and 8083, replication 10912 and 10914, metrics 5557 and 5559, nameserver 9876.
`--port N` moves all of them into the block from N to N + 6, so that clusters run side by side.
Options of the command line become flags of the processes and override their files; all other
settings come from the files. With `--port 0` ports are passed only as flags, so that the files of a
short-lived cluster do not fix port 0.

With a controller (the default with two brokers) the nameserver elects the leader, at first the
master; the slave's `brokerRole=SLAVE` then means "as the group's policy".
`COMETMQ_ENABLE_CONTROLLER_MODE=false` and `--no-controller` give fixed roles.
"""

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from .layout import DataDirectory

HOST = "127.0.0.1"
DEFAULT_PORT = 8081
_SLAVE_DISTANCE = 2
#: Ports of one `up --port N`, from N.
PORTS = 7

#: Flag of a process -> key of its file, for everything that `up` sets by flags.
KEYS = {
    "grpc_server_port": "grpcServerPort",
    "ha_listen_port": "haListenPort",
    "metrics_prom_exporter_port": "metricsPromExporterPort",
    "listen_port": "listenPort",
    "namesrv_addr": "namesrvAddr",
    "broker_role": "brokerRole",
    "flush_disk_type": "flushDiskType",
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


@dataclass(frozen=True, slots=True)
class Ports:
    """The ports of a cluster; those of the slave are `_SLAVE_DISTANCE` higher."""

    client: int = DEFAULT_PORT
    namesrv: int = 9876
    ha: int = 10912
    metrics: int = 5557


def _ports(first: int | None) -> Ports:
    """Return the usual ports, or those of the block of `--port`."""
    return Ports(first, first + 1, first + 3, first + 4) if first else Ports()


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
    ports: dict[str, int] = field(default_factory=dict)

    def value(self, flag: str) -> str:
        """Return the effective value: the flag, or else the file's value."""
        return self.flags.get(flag) or self.file_values.get(KEYS[flag], "")

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
        }
        for name, flag in flags.items():
            port = str(bound.get(name, "")).rpartition(":")[2]
            if port.isdigit():
                self.ports[name] = int(port)
                self.flags[flag] = port


def make_plans(data: DataDirectory, options: Options) -> list[Plan]:
    """Write missing files and return the plans, the nameserver first."""
    token = data.token()
    if options.single:
        return [_single(data, options, token)]
    return [
        _namesrv(data, options, token),
        _broker(data, options, token, "master"),
        _broker(data, options, token, "slave"),
    ]


def _namesrv(data: DataDirectory, options: Options, token: str) -> Plan:
    home = data.path / "namesrv"
    file, found, flags = _namesrv_file(data, options, token, home)
    return Plan("namesrv", "nameserver", "namesrv", home, {"--config": file}, flags, found)


def _namesrv_file(
    data: DataDirectory, options: Options, token: str, home: Path
) -> tuple[Path, dict[str, str], dict[str, str]]:
    file = home / "namesrv.conf"
    wanted = {"bindAddress": HOST, "clusterToken": token, "namesrvDataDir": str(home / "routes")}
    port = _ports(options.port).namesrv
    flags = {}
    if options.port is not None:
        flags["listen_port"] = str(port if options.port else 0)
    if options.controller:
        flags["controller"] = "true"
    if options.auth:
        flags["authentication_enabled"] = "true"
    if options.port != 0:
        wanted["listenPort"] = str(port)
    found = data.configure(file, wanted, "The nameserver of `cometmq up`.")
    return file, found, flags


def _broker(data: DataDirectory, options: Options, token: str, name: str) -> Plan:
    home = data.path / name
    is_slave = name == "slave"
    file, found, flags = _broker_file(data, options, token, home, is_slave=is_slave)
    return Plan(
        name,
        "slave" if is_slave else "master",
        "broker",
        home,
        {"--config": file},
        flags,
        found,
        needs_namesrv=options.port == 0,
    )


def _single(data: DataDirectory, options: Options, token: str) -> Plan:
    home = data.path / "single"
    file, found, flags = _broker_file(data, options, token, home, is_slave=False)
    namesrv_file, _, namesrv_flags = _namesrv_file(data, options, token, home)
    files = {"--config": file, "--namesrv-config": namesrv_file}
    return Plan("single", "master", "single", home, files, {**flags, **namesrv_flags}, found)


def _broker_file(
    data: DataDirectory, options: Options, token: str, home: Path, *, is_slave: bool
) -> tuple[Path, dict[str, str], dict[str, str]]:
    distance = _SLAVE_DISTANCE if is_slave else 0
    wanted = {
        "brokerClusterName": "DefaultCluster",
        "brokerName": "broker-a",
        "brokerId": "1" if is_slave else "0",
        "brokerRole": _role(options.replication or _usual_replication(options), is_slave),
        "flushDiskType": f"{(options.flush or 'async').upper()}_FLUSH",
        "brokerIP1": HOST,
        "bindAddress": HOST,
        "storePathRootDir": str(home / "store"),
        "clusterToken": token,
    }
    chosen = _ports(options.port)
    ports = {
        "grpc_server_port": chosen.client + distance,
        "ha_listen_port": chosen.ha + distance,
        "metrics_prom_exporter_port": chosen.metrics + distance,
    }
    namesrv = f"{HOST}:{chosen.namesrv}"
    flags: dict[str, str] = {}
    if options.port == 0:
        flags.update(dict.fromkeys(ports, "0"))
    else:
        wanted.update({KEYS[flag]: str(port) for flag, port in ports.items()})
        wanted["namesrvAddr"] = namesrv
    if options.port:
        flags.update({flag: str(port) for flag, port in ports.items()})
        flags["namesrv_addr"] = namesrv
    if options.replication:
        flags["broker_role"] = _role(options.replication, is_slave)
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
    if options.flush:
        flags["flush_disk_type"] = f"{options.flush.upper()}_FLUSH"
    file = home / "broker.conf"
    found = data.configure(file, wanted, f"The broker `{home.name}` of `cometmq up`.")
    return file, found, flags


def _usual_replication(options: Options) -> str:
    """Return the default: a single broker has no replica to wait for."""
    return "async" if options.single else "sync"


def _role(replication: str, is_slave: bool) -> str:
    return "SLAVE" if is_slave else f"{replication.upper()}_MASTER"


def _set_by_environment() -> bool:
    """Return True if the environment sets the controller mode; a flag would override it."""
    return "COMETMQ_ENABLE_CONTROLLER_MODE" in os.environ
