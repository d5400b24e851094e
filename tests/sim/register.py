"""The store behind a simulated controller: one file, or the product's CAS register over three
nameservers."""

from collections.abc import Callable
from typing import TYPE_CHECKING

from cometmq.ha.core.cas_register import (
    AcceptorState,
    Ballot,
    Change,
    Outcome,
    Phase,
    Round,
    Vote,
    accept,
    prepare,
)

from .scheduler import MS
from .settings import jitter

if TYPE_CHECKING:
    from .nameserver import Nameserver

Done = Callable[[Outcome, bytes], None]
ATTEMPTS = 4
ROUND_TIMEOUT_MS = 150


class Register:
    """The store of one incarnation of a nameserver."""

    def __init__(self, nameserver: "Nameserver") -> None:
        self.nameserver = nameserver
        self._counter = 0

    def change(self, cell: str, change: Change, done: Done) -> None:
        if self.nameserver.is_alone:
            self._change_file(change, done)
        else:
            self._attempt(cell, change, done, ATTEMPTS)

    # --- one file ---------------------------------------------------------------------------------

    def _change_file(self, change: Change, done: Done) -> None:
        nameserver = self.nameserver

        def write() -> None:
            """Atomic: a crash before it changes nothing."""
            current = nameserver.disk["file"] or b""
            changed = change(current)
            if changed is not None:
                nameserver.disk["file"] = changed
            value = current if changed is None else changed
            nameserver.later(jitter(nameserver.rng, 1), done, Outcome.TAKEN, value)

        nameserver.later(jitter(nameserver.rng, 1), write)

    # --- three acceptors --------------------------------------------------------------------------

    def _attempt(self, cell: str, change: Change, done: Done, left: int) -> None:
        nameserver = self.nameserver
        self._counter += 1
        # The incarnation is part of the name: a ballot is never used twice.
        proposer = f"{nameserver.name}.{nameserver.life}"
        members = nameserver.world.nameservers
        current = Round(len(members), Ballot(self._counter, proposer), change)
        finished = False

        def ask() -> None:
            phase = current.phase
            for member in members:
                request = (cell, phase, current.ballot, current.value)
                edge = (nameserver.name, member.name)
                if member is nameserver:
                    serve_at(member, request)
                else:
                    nameserver.world.network.datagram(edge, serve_at, member, request)
            nameserver.later(ROUND_TIMEOUT_MS * MS, time_out, phase)

        def serve_at(member: "Nameserver", request: tuple[str, Phase, Ballot, bytes]) -> None:
            if member.alive:
                member._if_alive(member.life, serve, (member, request))

        def serve(member: "Nameserver", request: tuple[str, Phase, Ballot, bytes]) -> None:
            name, phase, ballot, value = request
            held: AcceptorState = member.disk["cells"].get(name, AcceptorState())
            vote = prepare(held, ballot) if phase is Phase.PREPARE else accept(held, ballot, value)
            vote.state.validate()
            member.disk["cells"][name] = vote.state  # durable before the answer
            edge = (member.name, nameserver.name)
            if member is nameserver:
                answered(phase, member.name, vote)
            else:
                nameserver.world.network.datagram(edge, arrive, phase, member.name, vote)

        life = nameserver.life

        def arrive(phase: Phase, name: str, vote: Vote) -> None:
            nameserver._if_alive(life, answered, (phase, name, vote))

        def answered(phase: Phase, name: str, vote: Vote) -> None:
            if not finished and current.answered(phase, name, vote):
                advanced()

        def time_out(phase: Phase) -> None:
            for member in members:
                if not finished and current.failed(phase, member.name):
                    advanced()

        def advanced() -> None:
            nonlocal finished
            if current.phase is not Phase.DONE:
                ask()
                return
            finished = True
            self._counter = max(self._counter, current.highest.counter)
            if current.outcome is Outcome.CONFLICT and left > 1:
                pause = jitter(nameserver.rng, 10)
                nameserver.later(pause, self._attempt, cell, change, done, left - 1)
                return
            done(current.outcome, current.value)

        ask()
