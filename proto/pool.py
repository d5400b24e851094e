"""The private descriptor pool of every generated module in this folder.

A process may hold only one definition of `apache.rocketmq.v2.Message` in protobuf's default pool,
and the official RocketMQ client claims it there. Our definitions live in `POOL` instead, so one
process can import both. The price: `Timestamp` and `Duration` inside our messages are classes of
this pool too. Take them from `v2`; those of `google.protobuf` do not fit into our messages.

Rule: "the generated modules live in a descriptor pool of their own" (design, section 6).
"""

from google.protobuf import descriptor_pool, duration_pb2, timestamp_pb2

__all__ = ["POOL"]

POOL = descriptor_pool.DescriptorPool()
for _file in (duration_pb2.DESCRIPTOR, timestamp_pb2.DESCRIPTOR):
    POOL.AddSerializedFile(_file.serialized_pb)
