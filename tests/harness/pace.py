"""The pace of this machine (`drills/pace.py`), which test clusters use, too."""

from cometmq.drills.pace import PACE, paced_ms

__all__ = ["PACE", "paced_ms"]
