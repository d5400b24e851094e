"""gRPC method paths as constants: `paths.SEND_MESSAGE` is
`/apache.rocketmq.v2.MessagingService/SendMessage`.

The constants are derived from the service descriptors: the method's name in upper case. The names
in `_NAMES` get a prefix, because they say too little alone. Services of `cometmq.v1` are loaded on
first use; the client library imports none of them. `tests/proto/test_paths.py` checks that every
`paths.NAME` in the source tree exists.
"""

import re
from functools import cache
from typing import Final

from . import admin_pb2, service_pb2

#: Path prefixes of two services.
MESSAGING: Final = "/apache.rocketmq.v2.MessagingService/"
TEST: Final = "/cometmq.v1.Test/"

_NAMES: Final = {
    "/cometmq.v1.HaReplication/Replicate": "HA_REPLICATE",
    "/cometmq.v1.GroupController/Session": "CONTROLLER_SESSION",
    "/cometmq.v1.ReplicaControl/Status": "REPLICA_STATUS",
    "/cometmq.v1.MetaCell/Prepare": "CELL_PREPARE",
    "/cometmq.v1.MetaCell/Accept": "CELL_ACCEPT",
    "/cometmq.v1.MetaCell/Read": "CELL_READ",
}
_WORD_START: Final = re.compile(r"(?<!^)(?=[A-Z])")


def _constants(*modules: object) -> dict[str, str]:
    constants: dict[str, str] = {}
    for module in modules:
        for service in module.DESCRIPTOR.services_by_name.values():  # type: ignore[attr-defined]
            for method in service.methods:
                path = f"/{service.full_name}/{method.name}"
                name = _NAMES.get(path) or _WORD_START.sub("_", method.name).upper()
                if constants.setdefault(name, path) != path:
                    raise ValueError(
                        f"two methods would be paths.{name}: {constants[name]} and {path}"
                    )
    return constants


@cache
def _v1_constants() -> dict[str, str]:
    from . import control_pb2, controller_pb2, ha_pb2, nameserver_pb2, test_pb2

    return _constants(control_pb2, controller_pb2, ha_pb2, nameserver_pb2, test_pb2)


def __getattr__(name: str) -> str:
    path = _v1_constants().get(name)
    if path is None:
        raise AttributeError(f"no service has a method for paths.{name}")
    globals()[name] = path
    return path


globals().update(_constants(service_pb2, admin_pb2))
