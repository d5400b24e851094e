"""The remoting protocol: how RocketMQ 4.x clients, mqadmin and other tools call a server.

The package knows frames, headers, connections and dispatch by request code; it knows nothing of
messaging. Facts: docs/remoting.md and the recordings of tests/formats/golden/remoting.
"""
