"""Every message and enum of `apache.rocketmq.v2`, under one short name: `v2.Message`, `v2.OK`.

`Timestamp` and `Duration` are the classes of our private pool (see `pool`): make those fields with
`v2.Timestamp(...)`, never with `google.protobuf`'s own. They have the usual helpers
(`FromMilliseconds`, `ToMilliseconds`, ...).

`Code` and its numbers: client protocol 2.1.2 and later; `errors` says what they mean to a client.
"""

from typing import TYPE_CHECKING

from google.protobuf import message_factory as _message_factory

from .admin_pb2 import *
from .definition_pb2 import *
from .pool import POOL as _POOL
from .service_pb2 import *

if TYPE_CHECKING:
    from google.protobuf.duration_pb2 import Duration as Duration
    from google.protobuf.timestamp_pb2 import Timestamp as Timestamp
else:
    Duration = _message_factory.GetMessageClass(
        _POOL.FindMessageTypeByName("google.protobuf.Duration")
    )
    Timestamp = _message_factory.GetMessageClass(
        _POOL.FindMessageTypeByName("google.protobuf.Timestamp")
    )
