"""The catalogue of hostile inputs: every attack of the modules imported here, in their order."""

from cometmq.tests.hostile import (  # noqa: F401 - their attacks
    connections,
    floods,
    largest,
    remoting,
    sizes,
    values,
    walks,
)
from cometmq.tests.hostile.attacker import CATALOGUE, Attack

__all__ = ["CATALOGUE", "Attack"]
