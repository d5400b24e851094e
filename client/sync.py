"""The same clients, blocking: for scripts, threads and frameworks without an event loop.

    with cometmq.sync.Producer("127.0.0.1:8081") as producer:
        producer.send("orders", b"...")

Every blocking method waits for the asynchronous one on an event loop in one thread of the process, which
all blocking clients share; nothing is implemented twice. Safe to use from several threads. A handler
of a blocking PushConsumer runs in a thread of its own pool, so it may block, too; only a coroutine on
that loop may not wait for a blocking client, and is told so.
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Iterator
from functools import wraps
from typing import Any, Concatenate, Generic, ParamSpec, Self, TypeVar, cast

from . import producer as _producer
from . import pull_consumer as _pull
from . import push_consumer as _push
from . import simple_consumer as _simple
from . import transactions as _transactions
from .base import Client
from .errors import Closed, Forked
from .message import Message
from .session import Statistics

P = ParamSpec("P")
R = TypeVar("R")


C = TypeVar("C", bound=Client)


class _Loop:
    """One event loop in a daemon thread, for as long as some client is open.

    Not longer: gRPC serves all loops of a process from one place, and one that idles would take wake-ups
    away from the others.
    """

    def __init__(self) -> None:
        self.pid = os.getpid()
        self.users = 0
        self.loop = asyncio.new_event_loop()
        self._ended = asyncio.Event()
        self.thread = threading.Thread(target=self._run, name="cometmq-sync", daemon=True)
        self.thread.start()

    def _run(self) -> None:
        with asyncio.Runner(loop_factory=lambda: self.loop) as runner:
            runner.run(self._ended.wait())

    def end(self) -> None:
        """Cancel what is left, and wait for the thread."""
        self.loop.call_soon_threadsafe(self._ended.set)
        self.thread.join()

    def wait(self, work: Coroutine[Any, Any, R]) -> R:
        """Run it there, and wait for it here."""
        if os.getpid() != self.pid:
            work.close()
            raise Forked("this client belongs to the process that made it, before a fork")
        if threading.current_thread() is self.thread:
            work.close()
            raise RuntimeError(
                "a blocking client would wait here for the very loop that it runs on: "
                "make the handler a plain function, or use the asynchronous client"
            )
        future = asyncio.run_coroutine_threadsafe(work, self.loop)
        try:
            return future.result()
        except BaseException:
            future.cancel()
            raise


_lock = threading.Lock()
_loops: dict[int, _Loop] = {}


def _forget() -> None:
    """A thread of the parent may have held the lock at the fork: nobody would ever release it."""
    global _lock  # noqa: PLW0603
    _lock = threading.Lock()


os.register_at_fork(after_in_child=_forget)


def _enter() -> _Loop:
    """The process's loop, with one more user; a child after a fork gets its own."""
    with _lock:
        found = _loops.get(os.getpid())
        if found is None:
            found = _loops[os.getpid()] = _Loop()
        found.users += 1
        return found


def _leave(loop: _Loop) -> None:
    """One user less; the last one ends it. Nothing happens in a fork's child."""
    with _lock:
        loop.users -= 1
        last = loop.users == 0 and loop.pid == os.getpid()
        if last:
            del _loops[loop.pid]
    if last:
        loop.end()


class Blocking(Generic[C]):
    """A blocking face of one asynchronous client, made with the same arguments."""

    _class: Callable[..., Any]

    def __init__(self, *arguments: Any, **named: Any) -> None:
        self._arguments = (arguments, named)
        self._entered: _Loop | None = None
        self._made: C | None = None

    @property
    def _core(self) -> C:
        if self._made is None:
            raise Closed("the client is not open: use it within `with`")
        return self._made

    @property
    def _loop(self) -> _Loop:
        if self._entered is None:
            raise Closed("the client is not open: use it within `with`")
        return self._entered

    @property
    def client_id(self) -> str:
        """What the broker knows this client by."""
        return self._core.client_id

    @property
    def statistics(self) -> Statistics:
        """Counts since it was opened."""
        return self._core.statistics

    def start(self) -> Self:
        """Connect."""
        if self._made is not None:
            raise RuntimeError("the client was started already")

        async def begin() -> C:
            arguments, named = self._arguments
            core = type(self)._class(*arguments, **named)
            return cast(C, await core.start())

        loop = self._entered = _enter()
        try:
            self._made = loop.wait(begin())
        except BaseException:
            self._entered = None
            _leave(loop)
            raise
        return self

    def close(self) -> None:
        """Finish and say good-bye; a second call does nothing."""
        core, self._made = self._made, None
        loop, self._entered = self._entered, None
        if core is None or loop is None:
            return
        try:
            if loop.pid == os.getpid():  # a fork's child closes nothing
                loop.wait(core.close())
        finally:
            _leave(loop)

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.close()


def _blocking(
    method: Callable[Concatenate[C, P], Awaitable[R]],
) -> Callable[Concatenate[Blocking[C], P], R]:
    """The method of the asynchronous class, waited for."""

    @wraps(method)
    def wait(self: Blocking[C], *arguments: P.args, **named: P.kwargs) -> R:
        async def work() -> R:
            return await method(self._core, *arguments, **named)

        return self._loop.wait(work())

    return cast(Callable[Concatenate[Blocking[C], P], R], wait)


class Producer(Blocking[_producer.Producer]):
    """`cometmq.Producer`, blocking."""

    _class: Callable[..., Any] = _producer.Producer
    send = _blocking(_producer.Producer.send)
    send_many = _blocking(_producer.Producer.send_many)
    recall = _blocking(_producer.Producer.recall)
    flush = _blocking(_producer.Producer.flush)


class Transaction:
    """A half message: leaving the `with` block commits, an exception rolls back."""

    def __init__(self, loop: _Loop, core: _transactions.Transaction) -> None:
        self._loop = loop
        self._core = core
        self.receipt = core.receipt

    def commit(self) -> None:
        """Make the message visible."""
        self._loop.wait(self._core.commit())

    def rollback(self) -> None:
        """Drop the message."""
        self._loop.wait(self._core.rollback())

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: Any, error: Any, trace: Any) -> None:
        self._loop.wait(self._core.__aexit__(kind, error, trace))


class TransactionProducer(Producer):
    """`cometmq.TransactionProducer`, blocking; a checker that is a plain function may block, too."""

    _class = _transactions.TransactionProducer

    def transaction(self, topic: str, body: bytes, **extras: Any) -> Transaction:
        """Begin with a half message."""

        async def begin() -> _transactions.Transaction:
            core = cast(_transactions.TransactionProducer, self._core)
            return await core.transaction(topic, body, **extras)

        return Transaction(self._loop, self._loop.wait(begin()))


class SimpleConsumer(Blocking[_simple.SimpleConsumer]):
    """`cometmq.SimpleConsumer`, blocking."""

    _class = _simple.SimpleConsumer
    receive = _blocking(_simple.SimpleConsumer.receive)
    ack = _blocking(_simple.SimpleConsumer.ack)
    ack_all = _blocking(_simple.SimpleConsumer.ack_all)
    nack = _blocking(_simple.SimpleConsumer.nack)
    change_invisible = _blocking(_simple.SimpleConsumer.change_invisible)
    subscribe = _blocking(_simple.SimpleConsumer.subscribe)
    unsubscribe = _blocking(_simple.SimpleConsumer.unsubscribe)


class PushConsumer(Blocking[_push.PushConsumer]):
    """`cometmq.PushConsumer`, with a handler that may block."""

    _class = _push.PushConsumer


class PullConsumer(Blocking[_pull.PullConsumer]):
    """`cometmq.PullConsumer`, blocking."""

    _class = _pull.PullConsumer

    @property
    def queues(self) -> list[_pull.Key]:
        """What is assigned: topic, broker, queue id."""
        return self._core.queues

    def assign(self, queues: Iterable[_pull.Key]) -> None:
        """Read only these. Raises KeyError for one that is not there."""

        async def work() -> None:
            self._core.assign(queues)

        self._loop.wait(work())

    seek = _blocking(_pull.PullConsumer.seek)
    commit = _blocking(_pull.PullConsumer.commit)
    position = _blocking(_pull.PullConsumer.position)
    end = _blocking(_pull.PullConsumer.end)
    poll = _blocking(_pull.PullConsumer.poll)

    def __iter__(self) -> Iterator[Message]:
        while True:
            message = self.poll()
            if message is not None:
                yield message
