"""Every message and enum of `apache.rocketmq.v2`, under one short name: `v2.Message`, `v2.OK`.

`Timestamp` and `Duration` are classes of our private pool (see `pool`): create such fields with
`v2.Timestamp(...)`, not with the classes of `google.protobuf`. They have the usual helpers
(`FromMilliseconds`, `ToMilliseconds`, ...).

`Code` has the numbers of client protocol 2.1.2 and later; see `errors` for their meaning.
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
