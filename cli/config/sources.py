"""The configuration dataclasses of each process; imported only when a process is configured."""


def broker_owners() -> list[type]:
    """Return the dataclasses of a broker: broker, store, replication, door."""
    from ...broker.config import BrokerConfig
    from ...front.config import DoorConfig
    from ...ha.config import HaConfig
    from ...store.config.store_config import StoreConfig

    return [BrokerConfig, StoreConfig, HaConfig, DoorConfig]


def namesrv_owners() -> list[type]:
    """Return the dataclasses of a nameserver: nameserver, door."""
    from ...front.config import DoorConfig
    from ...nameserver.config import NameserverConfig

    return [NameserverConfig, DoorConfig]


def proxy_owners() -> list[type]:
    """Return the dataclasses of a proxy: proxy, door."""
    from ...broker.proxy.config import ProxyConfig
    from ...front.config import DoorConfig

    return [ProxyConfig, DoorConfig]
