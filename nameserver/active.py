"""Active nameserver: a time-limited claim on the register `controller`.

The holder renews the claim three times in its time to live, and counts its permission from the time
before each renewal was sent, less a tenth for clock drift. The others watch their own acceptor's
state; if it has not changed for a whole time to live, they try to replace exactly that value. So at
most one nameserver is active at a time, and even if clocks fail two of them do no harm. A holder
that stops releases the claim (docs/formats/ha.md, section 6.3).

No lease that a holder grants outlives its claim. So after a claim has expired, no lease of its
holder runs any more, and the next holder judges the silence of a leader by the heartbeats that it
received before it became active.
"""

import asyncio
import json
import logging
from collections.abc import Callable
from typing import Any

from msgspec import Struct

from .acceptor_store import AcceptorStore
from .meta_store import StoreUnavailableError
from .register_store import Register

logger = logging.getLogger(__name__)

REGISTER = "controller"
_NS_PER_MS = 1_000_000


class Claim(Struct, frozen=True):
    """A valid claim of this nameserver."""

    until_ns: int
    #: The former holder's claim expired. False: it was released, and its leases may still run.
    leases_are_over: bool


class ActiveClaim:
    """This nameserver's claim. `on_claim` receives every renewal, and None when it ends."""

    def __init__(
        self,
        register: Register,
        acceptor: AcceptorStore,
        *,
        instance: str,
        ttl_ms: int,
        steady_ns: Callable[[], int],
        on_claim: Callable[[Claim | None], None],
    ) -> None:
        self._register = register
        self._acceptor = acceptor
        self._instance = instance
        self._ttl_ns = ttl_ms * _NS_PER_MS
        self._steady_ns = steady_ns
        self._on_claim = on_claim
        self._address = ""
        self._valid_until_ns = -1
        self._watched: bytes | None = None
        self._watched_since_ns = 0
        self._was_released = False  #: the register was free when this claim began
        self._task: asyncio.Task[None] | None = None

    def may_decide(self, now_ns: int) -> bool:
        """Return whether the claim is valid at `now_ns`."""
        return now_ns < self._valid_until_ns

    @property
    def holder(self) -> str:
        """Address of the last holder known to this nameserver's acceptor."""
        return str(_read(self._acceptor.peek(REGISTER).value).get("address", ""))

    def start(self, address: str) -> None:
        """Start to claim and to watch."""
        self._address = address
        self._task = asyncio.get_running_loop().create_task(self._run())

    async def stop(self) -> None:
        """Release the claim, so that another nameserver becomes active immediately."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        if not self.may_decide(self._steady_ns()):
            return
        self._valid_until_ns = -1
        self._on_claim(None)
        try:
            async with asyncio.timeout(self._ttl_ns / 1e9):
                await self._register.change(REGISTER, self._release)
        except (StoreUnavailableError, TimeoutError):
            logger.info("controller.not_released: the claim stays until it expires")

    async def _run(self) -> None:
        pause_s = self._ttl_ns / 3e9
        while True:
            try:
                await self._turn()
            except StoreUnavailableError as error:
                logger.debug("controller.register_unavailable error=%s", error)
            now_ns = self._steady_ns()
            if not self.may_decide(now_ns):
                self._on_claim(None)
            await asyncio.sleep(pause_s if self.may_decide(now_ns) else pause_s / 2)

    async def _turn(self) -> None:
        now_ns = self._steady_ns()
        if not self.may_decide(now_ns) and not self._may_claim(now_ns):
            return
        value = await self._register.change(REGISTER, self._claim)
        if _read(value).get("life") == self._instance:
            self._valid_until_ns = now_ns + self._ttl_ns * 9 // 10
            if self.may_decide(self._steady_ns()):
                self._on_claim(Claim(self._valid_until_ns, not self._was_released))
        else:
            self._valid_until_ns = -1
            self._watch(value)

    def _may_claim(self, now_ns: int) -> bool:
        """Return whether the register is free or was not renewed for its time to live."""
        value = self._acceptor.peek(REGISTER).value
        if value != self._watched:
            self._watch(value)
        return not _read(value).get("life") or now_ns - self._watched_since_ns >= self._ttl_ns

    def _watch(self, value: bytes) -> None:
        self._watched = value
        self._watched_since_ns = self._steady_ns()

    def _claim(self, old: bytes) -> bytes | None:
        held = _read(old)
        ours = held.get("life") == self._instance
        free = not held.get("life")
        ran_out = (
            old == self._watched and self._steady_ns() - self._watched_since_ns >= self._ttl_ns
        )
        if not (ours or free or ran_out):
            return None
        if not ours:
            self._was_released = free
        claim = {
            "life": self._instance,
            "address": self._address,
            "seq": int(held.get("seq", 0)) + 1,
        }
        return json.dumps(claim, sort_keys=True).encode()

    def _release(self, old: bytes) -> bytes | None:
        held = _read(old)
        if held.get("life") != self._instance:
            return None
        return json.dumps({"life": "", "seq": int(held.get("seq", 0)) + 1}).encode()


def _read(value: bytes) -> dict[str, Any]:
    """Return the content of the register; invalid content counts as free."""
    try:
        fields = json.loads(value) if value else {}
    except ValueError:
        return {}
    return fields if isinstance(fields, dict) else {}
