"""Register store: the groups' states in CAS registers over several nameservers; a minority may
fail.

Each group has a register `group/NAME`. A change takes two rounds over all acceptors
(`ha/core/cas_register.py`), each fsynced by a majority before it counts. A round that conflicts
with another proposer is retried with a higher ballot after a short random pause, until the time
limit; then the outcome is unknown and the caller reads.
"""

import asyncio
import logging
import random
from collections.abc import Awaitable, Callable, Sequence

from ..ha.core.cas_register import (
    AcceptorState,
    Ballot,
    Change,
    Outcome,
    Phase,
    Round,
    Vote,
    merge_states,
)
from ..ha.core.group_state import GroupState
from .acceptor_store import AcceptorStore
from .acceptors import Acceptor, DuplicateReports, call_each_once
from .meta_store import StoreUnavailableError, decode_state, encode_state

logger = logging.getLogger(__name__)

GROUP_PREFIX = "group/"
_PAUSE_MIN_S = 0.005
_PAUSE_MAX_S = 0.05
_RECOVER_EVERY_S = 0.2


class Register:
    """Registers by name, over these acceptors. `instance` must never repeat: it makes ballots
    unique."""

    def __init__(
        self,
        acceptors: Sequence[Acceptor],
        instance: str,
        steady_ns: Callable[[], int],
        budget_s: float,
    ) -> None:
        self.acceptors = acceptors
        self._instance = instance
        self._steady_ns = steady_ns
        self._budget_ns = int(budget_s * 1e9)
        self._counter = 0
        self.duplicates = DuplicateReports()
        self._background: set[asyncio.Task[None]] = set()

    async def change(self, register: str, change: Change) -> bytes:
        """Change the register; returns its new value. Raises StoreUnavailableError.

        `change` may be called several times, and must recognise its own earlier result.
        """
        deadline_ns = self._steady_ns() + self._budget_ns
        while True:
            self._counter += 1
            ballot = Ballot(self._counter, self._instance)
            attempt = Round(len(self.acceptors), ballot, change)
            await self._prepare(attempt, register)
            if attempt.phase is Phase.ACCEPT:
                await self._accept(attempt, register)
            if attempt.outcome is Outcome.TAKEN:
                return attempt.value
            self._counter = max(self._counter, attempt.highest.counter)
            if self._steady_ns() >= deadline_ns:
                raise StoreUnavailableError(f"register {register}: {attempt.outcome.value}")
            await asyncio.sleep(random.uniform(_PAUSE_MIN_S, _PAUSE_MAX_S))

    async def read(self, register: str) -> bytes:
        """Return the register's committed value."""
        return await self.change(register, lambda _value: None)

    async def names(self) -> list[str]:
        """Return the registers known to any reachable acceptor; a majority must be reachable."""
        heard = await call_each_once(
            self.acceptors, lambda acceptor: acceptor.names(), self.duplicates
        )
        if len(heard) <= len(self.acceptors) // 2:
            raise StoreUnavailableError("a majority of the nameservers does not answer")
        return sorted({name for answer in heard for name in answer.registers})

    async def _prepare(self, attempt: Round, register: str) -> None:
        await self._run_phase(
            attempt, Phase.PREPARE, lambda acceptor: acceptor.prepare(register, attempt.ballot)
        )

    async def _accept(self, attempt: Round, register: str) -> None:
        value = attempt.value
        await self._run_phase(
            attempt, Phase.ACCEPT, lambda acceptor: acceptor.accept(register, attempt.ballot, value)
        )

    async def _run_phase(
        self, attempt: Round, phase: Phase, call: Callable[[Acceptor], Awaitable[Vote]]
    ) -> None:
        """Run one phase on every acceptor; returns when it is decided, while other calls continue.

        Every exception of a call counts as its failure, so that a phase always ends.
        """
        decided: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        async def one(acceptor: Acceptor) -> None:
            changed = False
            try:
                vote = await call(acceptor)
                changed = attempt.answered(phase, acceptor.name, vote)
                if (acceptor.name, vote.acceptor_id) in attempt.duplicates:
                    self.duplicates.report(acceptor.name, vote.acceptor_id)
            except StoreUnavailableError:
                changed = attempt.failed(phase, acceptor.name)
            except BaseException:
                changed = attempt.failed(phase, acceptor.name)
                raise
            finally:
                if changed and not decided.done():
                    decided.set_result(None)

        for acceptor in self.acceptors:
            task = asyncio.get_running_loop().create_task(one(acceptor))
            self._background.add(task)
            task.add_done_callback(self._background.discard)
        await decided

    async def stop(self) -> None:
        """Cancel the remaining calls."""
        for task in self._background:
            task.cancel()
        await asyncio.gather(*self._background, return_exceptions=True)


class RegisterStore:
    """A `MetaStore` on CAS registers."""

    def __init__(self, register: Register) -> None:
        self._register = register

    async def read(self, cluster: str, group: str) -> GroupState:
        """Return the state in place."""
        return _state(await self._register.read(GROUP_PREFIX + group), cluster, group)

    async def groups(self) -> list[tuple[str, str]]:
        """Return every group that has a register."""
        groups = []
        for name in await self._register.names():
            if name.startswith(GROUP_PREFIX):
                group = name.removeprefix(GROUP_PREFIX)
                state = await self.read("", group)
                if not state.is_new:
                    groups.append((state.cluster, group))
        return groups

    async def compare_and_set(
        self, expected_version: int, state: GroupState
    ) -> tuple[bool, GroupState]:
        """Replace a state (see `MetaStore`)."""
        new = encode_state(state)

        def change(old: bytes) -> bytes | None:
            if old == new:
                return None  # an earlier attempt of this call, whose answers were lost
            current = _state(old, state.cluster, state.group)
            return new if current.version == expected_version else None

        value = await self._register.change(GROUP_PREFIX + state.group, change)
        return value == new, _state(value, state.cluster, state.group)


def _state(value: bytes, cluster: str, group: str) -> GroupState:
    if not value:
        return GroupState(cluster, group)
    try:
        return decode_state(value)
    except ValueError as error:
        raise StoreUnavailableError(f"register of group {group}: {error}") from None


async def recover(
    acceptor: AcceptorStore, peers: Sequence[Acceptor], duplicates: DuplicateReports
) -> None:
    """Recover an acceptor whose disk is empty or was lost; waits for all others, then it may vote.

    An address that leads to this acceptor, or twice to the same other one, does not count.
    """
    while not acceptor.votes:
        heard = await call_each_once(
            peers, lambda peer: peer.names(), duplicates, acceptor.acceptor_id
        )
        names = sorted(
            {name for answer in heard for name in answer.registers} | set(acceptor.names)
        )
        majority = (len(peers) + 1) // 2 + 1
        try:
            if not names and len(heard) + 1 >= majority:
                await acceptor.take_over({})
            elif len(heard) == len(peers):
                await acceptor.take_over(
                    {name: await _merged(name, acceptor, peers, duplicates) for name in names}
                )
        except StoreUnavailableError as error:
            logger.info("acceptor.not_recovered error=%s", error)
        if acceptor.votes:
            logger.info("acceptor.recovered registers=%d", len(names))
            return
        await asyncio.sleep(_RECOVER_EVERY_S)


async def _merged(
    name: str, acceptor: AcceptorStore, peers: Sequence[Acceptor], duplicates: DuplicateReports
) -> AcceptorState:
    heard = await call_each_once(
        peers, lambda peer: peer.peek(name), duplicates, acceptor.acceptor_id
    )
    if len(heard) < len(peers):
        raise StoreUnavailableError(f"register {name}: not all other nameservers answer")
    return merge_states([acceptor.peek(name), *[vote.state for vote in heard]])
