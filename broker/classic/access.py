"""Access of classic clients: who signed a request, and whether its user has the rights.

Source: docs/formats/remoting.md, section 16.5. A request has the fields AccessKey (the name of the
user) and Signature: base64 of HMAC-SHA1 with the user's secret over the values of all other fields,
sorted by name, and the body. One without AccessKey belongs to the user that the certificate of its
connection names; a follower signs it for the leader with that user's secret. Users, policies,
decisions and counters are those of the gRPC port. A request whose code has no entry in the table of
rights needs a user of type Super; one that names nothing to have a right on is refused, unless its
code is public.
"""

from __future__ import annotations

import base64
import binascii
import hmac
from collections.abc import Callable, Container, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

from ...auth.signature import sign_command
from ...front.context import RequestContext
from ...proto.errors import WireError
from ...remoting.codes import Reply
from ...remoting.command import ACCESS_KEY, SIGNATURE, without_credentials
from ...remoting.connection import RemotingError
from ..access.guard import NAMES_NOTHING
from ..access.rights import SUPER
from .base.errors import reply_code
from .rights import BY_OFFSET, NOT_FOUND

if TYPE_CHECKING:
    from ...remoting.command import Command
    from ...remoting.connection import Connection, Handler
    from ..access.guard import Guard
    from ..access.rights import Needs

_NO_SUCH_MESSAGE = (
    "no message at this offset, or transaction of this id, that the user may have, or no right on "
    "the group"
)
#: Clients up to version 4.9.3 add this field after they have signed.
_UNSIGNED, _UNSIGNED_UP_TO = "_UNIQUE_KEY_QUERY", 399


class ClassicAccess:
    """Checks the requests of one port."""

    def __init__(
        self,
        guard: Guard,
        rights: Mapping[int, Callable[[Command], Needs]],
        public: Container[int],
        passes_on: Callable[[Command], bool],
        user_of: Callable[[bytes], str],
    ) -> None:
        """`rights` returns what a request needs, by its code; those of `public` may need nothing.
        `passes_on` returns whether the leader gets the request, and decides again; `user_of` the
        user that a certificate names, or an empty string."""
        self._guard = guard
        self._rights = rights
        self._public = public
        self._passes_on = passes_on
        self._user_of = user_of

    def checking(self, handler: Handler) -> Handler:
        """Return a handler of requests that are checked first."""

        def handle(command: Command, peer: Connection) -> Any:
            certified = self._check(command, peer)
            if not self._passes_on(command):  # the leader checks the signature again
                command.fields = without_credentials(command).fields
            elif certified:
                self._sign(command, certified)
            return handler(command, peer)

        return handle

    def _check(self, command: Command, peer: Connection) -> str:
        """Set the user of the connection's request; return the one of a certificate. Raises
        RemotingError."""
        fields = command.fields
        name, needs = fields.get(ACCESS_KEY, ""), partial(self._needs, command)
        certified = "" if name else self._user_of(peer.certificate)
        ctx = RequestContext(fields.get("clientId", ""), peer=peer.peer, user=certified)
        try:
            if certified:
                self._guard.check_certified(needs, ctx)
            elif name:
                self._guard.check_signed(name, partial(is_signed, command), needs, ctx)
            else:
                raise RemotingError(Reply.NO_PERMISSION, "the request has no AccessKey")
        except WireError as error:
            text = error.message
            if ctx.metadata and command.code in BY_OFFSET:  # signed; a right is missing
                text = _NO_SUCH_MESSAGE
            raise RemotingError(reply_code(error.code), text) from None
        peer.metadata = ctx.metadata
        return certified

    def _sign(self, command: Command, user: str) -> None:
        """Sign a request in the name of its user. Raises RemotingError."""
        fields = command.fields = {**without_credentials(command).fields, ACCESS_KEY: user}
        try:
            made = signature(command, self._guard.secret_of(user))
        except WireError as error:
            raise RemotingError(reply_code(error.code), error.message) from None
        fields[SIGNATURE] = base64.b64encode(made).decode()

    def _needs(self, command: Command) -> Needs:
        """Return what a request needs. Raises WireError, RemotingError, HeaderError."""
        rights = self._rights.get(command.code)
        if rights is None:
            return SUPER
        try:
            needs = rights(command)
        except (RemotingError, WireError):
            if not self._passes_on(command):
                raise
            return ()  # a message or transaction that only the leader has
        if NOT_FOUND in needs and self._passes_on(command):
            return ()
        if not needs and command.code not in self._public:
            raise RemotingError(Reply.NO_PERMISSION, NAMES_NOTHING)
        return needs


def is_signed(command: Command, secret: bytes) -> bool:
    """Return whether a command is signed with a secret."""
    try:
        found = base64.b64decode(command.fields.get(SIGNATURE, ""), validate=True)
    except (binascii.Error, ValueError):
        return False
    return hmac.compare_digest(found, signature(command, secret))


def signature(command: Command, secret: bytes) -> bytes:
    """Return the signature of a command."""
    fields = command.fields
    names = sorted(fields.keys() - {SIGNATURE})
    if command.version <= _UNSIGNED_UP_TO and _UNSIGNED in names:
        names.remove(_UNSIGNED)
    return sign_command(secret, (fields[name] for name in names), command.body)
