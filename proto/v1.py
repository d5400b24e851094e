"""Every message and enum of `cometmq.v1`, under one short name: `v1.RegisterRequest`, `v1.LEADER`.

This protocol is our own: nameserver, replication, control and test hooks between the nodes of a
cluster and its tools. Fields are only ever added; a number is never used twice.
"""

from .control_pb2 import *
from .controller_pb2 import *
from .ha_pb2 import *
from .nameserver_pb2 import *
from .test_pb2 import *
