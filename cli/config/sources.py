"""Which configuration dataclasses make up which process; imported only when one is configured."""


def broker_owners() -> list[type]:
    """A broker: its own settings, the store's, replication's and the door's."""
    from ...broker.config import BrokerConfig
    from ...front.config import DoorConfig
    from ...ha.config import HaConfig
    from ...store.config.store_config import StoreConfig

    return [BrokerConfig, StoreConfig, HaConfig, DoorConfig]


def namesrv_owners() -> list[type]:
    """A nameserver: its own settings and the door's."""
    from ...front.config import DoorConfig
    from ...nameserver.config import NameserverConfig

    return [NameserverConfig, DoorConfig]


def proxy_owners() -> list[type]:
    """A proxy: its own settings and the door's."""
    from ...broker.proxy.config import ProxyConfig
    from ...front.config import DoorConfig

    return [ProxyConfig, DoorConfig]
