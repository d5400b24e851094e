"""How client RPCs come in: the doors (grpc.aio here, native elsewhere) and the access point.

A door knows bytes, metadata and streams, and no message; a service knows messages and no door
(front-door note, section 4). `service.py` is the seam between them, `context.py` what passes through
it, `clock.py` the only place of the product that reads a clock.
"""
