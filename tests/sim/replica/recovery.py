"""Restart of a simulated replica: the pending plan, the scan of its log, the suspect rule.

The steps of a plan are those of `ha/rejoin/cut.py`: archive, report, zero, shorten the history,
delete the plan; each is durable before the next, and all can be repeated.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING

from cometmq.ha.core.epochs import EpochHistory
from cometmq.tests.sim.replica.records import MESSAGE, read_one, scan

if TYPE_CHECKING:
    from cometmq.tests.sim.replica.node import Node


@dataclass(frozen=True, slots=True)
class Whole:
    log_end: int
    messages: int


@dataclass(frozen=True, slots=True)
class Recovered:
    log_end: int
    messages: int
    history: EpochHistory


def whole_end(log: bytearray, start: int, limit: int) -> Whole:
    """Return the end of the last whole record received."""
    messages = 0
    while (record := read_one(log, start, limit)) is not None:
        start = record.end
        messages += record.kind == MESSAGE
    return Whole(start, messages)


def run_plan(node: "Node") -> None:
    plan = node.disk.files.get("pending")
    if plan is None:
        return
    if plan["kind"] == "cut":
        _cut(node, plan["to"], plan["accept_loss"])
    else:
        _reseed(node)
    del node.disk.files["pending"]
    node.step()


def _cut(node: "Node", to: int, accept_loss: bool) -> None:
    disk, rules = node.disk, node.world.parts.rules
    old_end = whole_end(disk.live, 0, disk.extent).log_end
    if old_end > to:
        node.world.oracle.cuts(node, to, old_end, accept_loss)
        if rules.archives_what_it_cuts:
            archived = bytes(disk.live[to:old_end])
            node.world.oracle.archived(node, to, archived)
        node.step()
    disk.shrink(to, zero=rules.zeroes_what_it_cuts)
    node.logical_end = to
    node.step()
    history = node.world.parts.history(disk.files.get("epochs", ()))
    history.truncate(to)
    disk.files["epochs"] = tuple(history.entries)
    node.step()
    node.world.oracle.has_cut(node, to, old_end)


def _reseed(node: "Node") -> None:
    disk = node.disk
    old_end = whole_end(disk.live, 0, disk.extent).log_end
    node.world.oracle.archived(node, 0, bytes(disk.live[0:old_end]))
    node.step()
    disk.shrink(0, zero=True)
    disk.files["epochs"] = ()
    disk.hints.pop("confirm", None)
    node.step()


def recover(node: "Node") -> Recovered:
    """Scan the log, drop a torn record at its end, and return whether acknowledged bytes may be
    missing."""
    disk, rules = node.disk, node.world.parts.rules
    limit = disk.extent
    logical_end = node.logical_end
    if logical_end is not None:
        # Without zeroing, only this incarnation's memory has the end of the log.
        limit, node.logical_end = logical_end, None
    records = scan(disk.live, 0, limit)
    end = records[-1].end if records else 0
    if logical_end is None or rules.zeroes_what_it_cuts:
        disk.shrink_tail(end)
    history = node.world.parts.history(disk.files.get("epochs", ()))
    history.truncate(end + 1)  # an epoch that begins here may have been assigned already
    disk.files["epochs"] = tuple(history.entries)
    same_boot = disk.files.get("boot_id", node.boot_id) == node.boot_id
    disk.files["boot_id"] = node.boot_id
    if not same_boot:
        disk.flush(end)
        if not node.settings.sync_flush and rules.suspects_power_loss:
            disk.files["suspect"] = True
    elif not rules.suspect_mark_is_durable:
        disk.files["suspect"] = False
    node.step()
    return Recovered(end, sum(r.kind == MESSAGE for r in records), history)
