"""Authentication and authorization: signatures, users, policies and decisions, without I/O.

The model is RocketMQ's ACL 2.0 (docs/formats/grpc-api.md, sections 2.2-2.4).
"""
