"""The configuration dataclasses of each process; imported only when a process is configured."""


def broker_owners() -> list[type]:
    """Return the dataclasses of a broker: broker, store, replication, door, TLS, logs, console."""
    from ...broker.base.config import BrokerConfig
    from ...front.config import DoorConfig
    from ...ha.config import HaConfig
    from ...nodes.tls_config import TlsConfig
    from ...store.config.store_config import StoreConfig
    from ..server.console_config import ConsoleConfig
    from ..server.logs import LogConfig

    return [BrokerConfig, StoreConfig, HaConfig, DoorConfig, TlsConfig, LogConfig, ConsoleConfig]


def namesrv_owners() -> list[type]:
    """Return the dataclasses of a nameserver: nameserver, door, TLS, logs."""
    from ...front.config import DoorConfig
    from ...nameserver.config import NameserverConfig
    from ...nodes.tls_config import TlsConfig
    from ..server.logs import LogConfig

    return [NameserverConfig, DoorConfig, TlsConfig, LogConfig]


def proxy_owners() -> list[type]:
    """Return the dataclasses of a proxy: proxy, door, TLS, logs, console."""
    from ...broker.proxy.base.config import ProxyConfig
    from ...front.config import DoorConfig
    from ...nodes.tls_config import TlsConfig
    from ..server.console_config import ConsoleConfig
    from ..server.logs import LogConfig

    return [ProxyConfig, DoorConfig, TlsConfig, LogConfig, ConsoleConfig]
