"""The front door: the network entry of client RPCs (grpcio or native), and the access point.

A door handles bytes, metadata and streams; a service handles messages (docs/formats/front-door.md,
section 4). `service.py` defines the interface between them, `context.py` the metadata of a call,
and `clock.py` is the only module of the product that reads a clock.
"""
