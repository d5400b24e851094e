"""A group of this nameserver's controller, with the cuts that its replicas reported."""

from collections import deque
from dataclasses import dataclass, field

from ..ha.core.controller.group_controller import GroupController
from ..proto import v1

CUTS_KEPT = 16


@dataclass(slots=True)
class HostedGroup:
    """One group: its state machine and the newest reports of archived diverged tails."""

    core: GroupController
    cuts: deque[v1.ReportCutRequest] = field(default_factory=lambda: deque(maxlen=CUTS_KEPT))
