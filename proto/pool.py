"""The private descriptor pool of every generated module in this folder.

Protobuf's default pool accepts only one definition of `apache.rocketmq.v2.Message`, and the
official RocketMQ client registers its own there. Our definitions are in `POOL` instead, so one
process can import both. Consequence: `Timestamp` and `Duration` in our messages are classes of this
pool. Use those of `v2`; the classes of `google.protobuf` are not accepted.
"""

from google.protobuf import descriptor_pool, duration_pb2, timestamp_pb2

__all__ = ["POOL"]

POOL = descriptor_pool.DescriptorPool()
for _file in (duration_pb2.DESCRIPTOR, timestamp_pb2.DESCRIPTOR):
    POOL.AddSerializedFile(_file.serialized_pb)
