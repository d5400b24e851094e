"""The wire: `.proto` files, the modules generated from them, method paths, the table of errors.

* `v2`: the client protocol `apache.rocketmq.v2`, equal on the wire to the official 2.1.2;
* `v1`: our own protocol `cometmq.v1` between nodes, tools and tests;
* `paths`: the method paths of all services (there are no generated stubs);
* `errors`: `WireError`, `RpcFailure` and what each code means to a client;
* `pool`: the private descriptor pool, which keeps us apart from the official client.

`*_pb2.py` and `*_pb2.pyi` are written by `scripts/gen_proto`; a test proves that they are current.
"""
