"""Blocking clients, for scripts, threads and frameworks without an event loop.

    with cometmq.sync.Producer("127.0.0.1:8081") as producer:
        producer.send("orders", b"...")

Every blocking method runs the asynchronous one on an event loop in a thread, which all blocking
clients of the process share, and waits for it. The clients are thread-safe. The handler of a
blocking PushConsumer runs in a thread pool and may block. A coroutine on the shared loop cannot
call a blocking client: it raises RuntimeError.
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
    """An event loop in a daemon thread, while any blocking client is open.

    It ends with the last client: grpcio shares its wake-ups among all loops of a process, and an
    idle loop would take them from the others.
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
        """Cancel the remaining tasks and wait for the thread."""
        self.loop.call_soon_threadsafe(self._ended.set)
        self.thread.join()

    def wait(self, work: Coroutine[Any, Any, R]) -> R:
        """Run a coroutine on the loop and wait for its result."""
        if os.getpid() != self.pid:
            work.close()
            raise Forked("the client was created before the fork: create one in this process")
        if threading.current_thread() is self.thread:
            work.close()
            raise RuntimeError(
                "a blocking client was called on its own event loop and would deadlock: "
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


def _reset_lock() -> None:
    """Replace the lock in a forked child: a thread of the parent may have held it."""
    global _lock  # noqa: PLW0603
    _lock = threading.Lock()


os.register_at_fork(after_in_child=_reset_lock)


def _acquire_loop() -> _Loop:
    """Return the process's loop and count its users; a forked child gets its own loop."""
    with _lock:
        shared = _loops.get(os.getpid())
        if shared is None:
            shared = _loops[os.getpid()] = _Loop()
        shared.users += 1
        return shared


def _release_loop(loop: _Loop) -> None:
    """Release the loop; the last user ends it. Does nothing in a forked child."""
    with _lock:
        loop.users -= 1
        last = loop.users == 0 and loop.pid == os.getpid()
        if last:
            del _loops[loop.pid]
    if last:
        loop.end()


class Blocking(Generic[C]):
    """Blocking wrapper of an asynchronous client, created with the same arguments."""

    _class: Callable[..., Any]

    def __init__(self, *arguments: Any, **named: Any) -> None:
        self._arguments = (arguments, named)
        self._acquired: _Loop | None = None
        self._opened: C | None = None

    @property
    def _client(self) -> C:
        if self._opened is None:
            raise Closed("the client is not open: use it within `with`")
        return self._opened

    @property
    def _loop(self) -> _Loop:
        if self._acquired is None:
            raise Closed("the client is not open: use it within `with`")
        return self._acquired

    @property
    def client_id(self) -> str:
        """The id that this client sends with every call."""
        return self._client.client_id

    @property
    def statistics(self) -> Statistics:
        """Counters since the client was opened."""
        return self._client.statistics

    def start(self) -> Self:
        """Connect."""
        if self._opened is not None:
            raise RuntimeError("the client is already started")

        async def begin() -> C:
            arguments, named = self._arguments
            core = type(self)._class(*arguments, **named)
            return cast(C, await core.start())

        loop = self._acquired = _acquire_loop()
        try:
            self._opened = loop.wait(begin())
        except BaseException:
            self._acquired = None
            _release_loop(loop)
            raise
        return self

    def close(self) -> None:
        """Finish the work in flight and disconnect. A second call does nothing."""
        core, self._opened = self._opened, None
        loop, self._acquired = self._acquired, None
        if core is None or loop is None:
            return
        try:
            if loop.pid == os.getpid():  # a forked child closes nothing
                loop.wait(core.close())
        finally:
            _release_loop(loop)

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.close()


def _blocking(
    method: Callable[Concatenate[C, P], Awaitable[R]],
) -> Callable[Concatenate[Blocking[C], P], R]:
    """Return a blocking version of a coroutine method."""

    @wraps(method)
    def wait(self: Blocking[C], *arguments: P.args, **named: P.kwargs) -> R:
        async def work() -> R:
            return await method(self._client, *arguments, **named)

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
    """A half message. Leaving the `with` block commits, an exception rolls back."""

    def __init__(self, loop: _Loop, core: _transactions.Transaction) -> None:
        self._loop = loop
        self._client = core
        self.receipt = core.receipt

    def commit(self) -> None:
        """Make the message visible."""
        self._loop.wait(self._client.commit())

    def rollback(self) -> None:
        """Discard the message."""
        self._loop.wait(self._client.rollback())

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: Any, error: Any, trace: Any) -> None:
        self._loop.wait(self._client.__aexit__(kind, error, trace))


class TransactionProducer(Producer):
    """`cometmq.TransactionProducer`, blocking. A checker that is a plain function may block."""

    _class = _transactions.TransactionProducer

    def transaction(self, topic: str, body: bytes, **extras: Any) -> Transaction:
        """Send a half message."""

        async def begin() -> _transactions.Transaction:
            core = cast(_transactions.TransactionProducer, self._client)
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
    subscribe_lite = _blocking(_simple.SimpleConsumer.subscribe_lite)
    unsubscribe_lite = _blocking(_simple.SimpleConsumer.unsubscribe_lite)


class PushConsumer(Blocking[_push.PushConsumer]):
    """`cometmq.PushConsumer`, with a handler that may block."""

    _class = _push.PushConsumer

    subscribe_lite = _blocking(_push.PushConsumer.subscribe_lite)
    unsubscribe_lite = _blocking(_push.PushConsumer.unsubscribe_lite)


class PullConsumer(Blocking[_pull.PullConsumer]):
    """`cometmq.PullConsumer`, blocking."""

    _class = _pull.PullConsumer

    @property
    def queues(self) -> list[_pull.Key]:
        """The assigned queues: topic, broker, queue id."""
        return self._client.queues

    def assign(self, queues: Iterable[_pull.Key]) -> None:
        """Read only these queues. Raises KeyError for a queue that is not assigned."""

        async def work() -> None:
            self._client.assign(queues)

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
