"""Every message and enum of `cometmq.v1`, under one short name: `v1.RegisterRequest`, `v1.LEADER`.

The protocol between the nodes of a cluster and its tools: nameserver, replication, control, test
hooks. Fields are only added; a number is never reused.
"""

from .control_pb2 import *
from .controller_pb2 import *
from .ha_pb2 import *
from .nameserver_pb2 import *
from .test_pb2 import *
