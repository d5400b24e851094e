"""The catalogue of hostile inputs: every attack of the modules imported here, in their order."""

from cometmq.tests.hostile import connections, largest, sizes, values  # noqa: F401 - their attacks
from cometmq.tests.hostile.attacker import CATALOGUE, Attack

__all__ = ["CATALOGUE", "Attack"]
