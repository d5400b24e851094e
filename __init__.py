"""CometMQ: a replicated message broker with RocketMQ 5's protocol and store format.

The repository root is this package; `docs/architecture.md` describes its folders. Public names are
imported lazily, so that `import cometmq` loads neither gRPC nor Spark.
"""

from importlib import import_module as _import_module
from typing import TYPE_CHECKING

__version__ = "0.1.0"

if TYPE_CHECKING:
    from .client import errors as errors
    from .client import sync as sync
    from .client.decorator import consumer as consumer
    from .client.errors import CometError as CometError
    from .client.errors import ConnectionFailed as ConnectionFailed
    from .client.errors import OutcomeUnknown as OutcomeUnknown
    from .client.errors import RequestRefused as RequestRefused
    from .client.filters import Filter as Filter
    from .client.filters import sql as sql
    from .client.message import Message as Message
    from .client.message import Receipt as Receipt
    from .client.producer import Producer as Producer
    from .client.pull_consumer import BEGINNING as BEGINNING
    from .client.pull_consumer import COMMITTED as COMMITTED
    from .client.pull_consumer import END as END
    from .client.pull_consumer import PullConsumer as PullConsumer
    from .client.push_consumer import PushConsumer as PushConsumer
    from .client.simple_consumer import SimpleConsumer as SimpleConsumer
    from .client.transactions import Resolution as Resolution
    from .client.transactions import TransactionProducer as TransactionProducer
    from .client.transport.credentials import Credentials as Credentials

_MODULE_OF = {
    "BEGINNING": "pull_consumer",
    "COMMITTED": "pull_consumer",
    "END": "pull_consumer",
    "CometError": "errors",
    "ConnectionFailed": "errors",
    "Credentials": "transport.credentials",
    "Filter": "filters",
    "Message": "message",
    "OutcomeUnknown": "errors",
    "Producer": "producer",
    "PullConsumer": "pull_consumer",
    "PushConsumer": "push_consumer",
    "Receipt": "message",
    "RequestRefused": "errors",
    "Resolution": "transactions",
    "SimpleConsumer": "simple_consumer",
    "TransactionProducer": "transactions",
    "consumer": "decorator",
    "sql": "filters",
}
_MODULES = ("errors", "sync")
__all__ = ["__version__", *_MODULE_OF, *_MODULES]  # noqa: PLE0604


def __getattr__(name: str) -> object:
    if name in _MODULES:
        return _import_module(f".client.{name}", __name__)
    module = _MODULE_OF.get(name)
    if module is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    found: object = getattr(_import_module(f".client.{module}", __name__), name)
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return sorted(__all__)
