"""The same call to several nodes at once: one node that does not answer delays no other."""

import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

from ...operations.connection import Connection, checked, failure
from ...operations.errors import CliError, NotServedError
from ...operations.ports import NAMESERVER, kind_of_port
from ..links import connect

#: What a command of these calls has in place of `--endpoint`.
_INSTEAD = "nameserver with --namesrv"


class Calls:
    """Calls in progress, started by the constructor; a context manager that ends them."""

    def __init__(
        self, addresses: Sequence[str], path: str, request: object, answer: type[Any]
    ) -> None:
        self.answers: dict[str, Any] = {}  #: by address, in the order of arrival
        self.errors: dict[str, CliError] = {}
        self._began_s = time.monotonic()
        self._changed = threading.Condition()
        self._calls: dict[str, tuple[Connection, Any]] = {}
        for address in dict.fromkeys(addresses):
            connection = connect(address)
            method: Any = connection.method(path, answer)
            call = method.future(request, metadata=connection.metadata)
            self._calls[address] = connection, call
        for address, (_, call) in self._calls.items():
            call.add_done_callback(lambda call, address=address: self._done(address, call))

    def __enter__(self) -> "Calls":
        return self

    def __exit__(self, *_: object) -> None:
        for connection, _ in self._calls.values():
            connection.channel.close()

    def wait(self, timeout_s: float, enough: Callable[[Any], bool] = lambda _: False) -> None:
        """Wait for all answers, for one that is `enough`, or until `timeout_s` after the start.

        Calls without an answer at the timeout get an error and are cancelled.
        """
        left_s = self._began_s + timeout_s - time.monotonic()

        def ready() -> bool:
            whole = len(self.answers) + len(self.errors) == len(self._calls)
            return whole or any(enough(answer) for answer in self.answers.values())

        with self._changed:
            if self._changed.wait_for(ready, max(0.0, left_s)):
                return
            for address, (_, call) in self._calls.items():
                if address not in self.answers:
                    text = f"{address} did not answer within {round(timeout_s, 1):g} s"
                    self.errors.setdefault(address, CliError(text))
                call.cancel()

    def first(self, timeout_s: float) -> float:
        """Wait for an answer or the errors of all, at most until `timeout_s` after the start.

        Returns the seconds since the start. Calls without an answer go on.
        """
        with self._changed:
            self._changed.wait_for(
                lambda: self.answers or len(self.errors) == len(self._calls),
                max(0.0, self._began_s + timeout_s - time.monotonic()),
            )
        return time.monotonic() - self._began_s

    def failed(self) -> CliError | None:
        """Return an error if no node answered; a node that does not have the method counts as one
        that answered."""
        if self.answers:
            return None
        errors = self.errors.values()
        return next((error for error in errors if not isinstance(error, NotServedError)), None)

    def why_none(self) -> CliError:
        """Return the error of a call that no nameserver answered; it names another kind of port."""
        address, error = next(iter(self.errors.items()))
        kind = kind_of_port(address, self._calls[address][0].links)
        if kind in ("", NAMESERVER):
            return error
        return CliError(
            f"{address} is {kind}. Name a nameserver with --namesrv (9876 by default; `cometmq up`"
            " prints it)."
        )

    def _done(self, address: str, call: Any) -> None:
        """Enter the outcome of a call; runs in a thread of gRPC."""
        import grpc

        with self._changed:
            if address in self.errors:
                return
            try:
                answer = call.result()
                self.answers[address] = checked(answer) if hasattr(answer, "code") else answer
            except CliError as error:
                self.errors[address] = error
            except grpc.RpcError as error:
                # Not the failure of the connection: it looks what listens, with the lock held.
                links = self._calls[address][0].links
                self.errors[address] = failure(error, address, links, instead=_INSTEAD)
            except grpc.FutureCancelledError:
                return
            self._changed.notify_all()
