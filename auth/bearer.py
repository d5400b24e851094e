"""Bearer tokens of an OpenID Connect provider, verified without it: signature, issuer, audience,
times (RFC 7519, 7515, 7517). No I/O.

A token is a JWT that a key of the provider's key set has signed with an asymmetric algorithm. So
`none`, and HMAC with a public key as the secret, are no signatures here: no key of the set is for
them, and their names are not accepted. A name that is given twice in its JSON is a refusal: another
reader might take the other value. joserfc is imported with the first key set.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from msgspec import Struct

if TYPE_CHECKING:
    from collections.abc import Callable

    from joserfc.jwk import KeySet

#: The beginning of the header `authorization`.
BEARER = "Bearer "
#: Longer tokens are refused unread.
TOKEN_LENGTH_MAX = 8 << 10
#: A key set of a provider has a few keys, each below 1 KiB.
JWKS_BYTES_MAX = 256 << 10
_KEYS_MAX = 64
#: Of ID tokens and access tokens (RFC 9068, section 2.1), in lower case; a provider signs others,
#: as of a logout, with the same key.
_TYPES = ("jwt", "at+jwt", "application/at+jwt")
_ALGORITHMS = (
    *("RS256", "RS384", "RS512", "PS256", "PS384", "PS512"),
    *("ES256", "ES384", "ES512", "EdDSA", "Ed25519"),
)
_KEY_TYPES = ("RSA", "EC", "OKP")
#: Difference of clocks that is accepted.
_LEEWAY_S = 60
#: The year 9999.
_END_MAX_S = 253_402_300_800


class BearerError(ValueError):
    """A token is refused. The message gives the reason, and contains no part of the token."""


class _Unique(json.JSONDecoder):
    """Raises ValueError for a name that an object has twice."""

    def __init__(self) -> None:
        super().__init__(object_pairs_hook=_object)


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("a name is given twice")
    return found


class BearerRules(Struct, frozen=True):
    """What a token must say."""

    issuer: str
    audience: str
    #: The claim with the name of the user.
    user_claim: str = "sub"


class Bearer(Struct, frozen=True):
    """A verified token: its user, and when it ends."""

    user: str
    until_ms: int


def read_keys(text: bytes) -> KeySet:
    """Return the public keys of a JWKS document, without those of other uses and of unknown kinds
    (RFC 7517, section 5). Raises ValueError."""
    from joserfc.jwk import KeySet

    if len(text) > JWKS_BYTES_MAX:
        raise ValueError(f"the key set has more than {JWKS_BYTES_MAX} bytes")
    try:
        found = json.loads(text, cls=_Unique)["keys"]
        listed = [each for each in found if _is_for_signatures(each)]
    except (TypeError, KeyError, AttributeError, RecursionError) as error:
        raise ValueError(f"this is no key set (JWKS): {error}") from None
    if len(listed) > _KEYS_MAX:
        raise ValueError(f"the key set has {len(listed)} keys for signatures")
    keys = [key for key in map(_imported, listed) if key is not None]
    if not keys:
        raise ValueError("the key set has no key for signatures")
    return KeySet(keys)


def _is_for_signatures(key: dict[str, Any]) -> bool:
    return key.get("kty") in _KEY_TYPES and key.get("use", "sig") == "sig" and "d" not in key


def _imported(key: dict[str, Any]) -> Any:
    """Return a key; None for one that the library does not know, for example of another curve."""
    from joserfc.errors import JoseError
    from joserfc.jwk import KeySet

    try:
        return KeySet.import_key_set({"keys": [key]}).keys[0]
    except (JoseError, ValueError, TypeError, KeyError, AttributeError, RecursionError):
        return None


class BearerVerifier:
    """Verifies tokens with the key set of the moment."""

    def __init__(self, rules: BearerRules, wall_ms: Callable[[], int]) -> None:
        self._rules = rules
        self._wall_ms = wall_ms
        #: None until one was read: no token is accepted.
        self.keys: KeySet | None = None
        #: Called for a token of a key that is not in the set: it may be newer.
        self.on_unknown_key: Callable[[], None] = lambda: None

    def verify(self, token: str) -> Bearer:
        """Return the user of a token. Raises BearerError."""
        from joserfc import jwt
        from joserfc.errors import InvalidKeyIdError, JoseError

        if len(token) > TOKEN_LENGTH_MAX:
            raise BearerError("it is too long")
        if self.keys is None:
            raise BearerError("the provider's keys are not known yet")
        try:
            decoded = jwt.decode(token, self._key_of, algorithms=_ALGORITHMS, decoder_cls=_Unique)
        except InvalidKeyIdError:
            self.on_unknown_key()
            raise BearerError("its key is not in the provider's key set") from None
        except (JoseError, ValueError, TypeError, KeyError, RecursionError):
            raise BearerError("it is malformed, or its signature is wrong") from None
        if str(decoded.header.get("typ", "JWT")).lower() not in _TYPES:
            raise BearerError("it is no access token or ID token")
        return self._checked(decoded.claims)

    def _key_of(self, token: Any) -> Any:
        """Return the key that the token names; without a name, the only one."""
        from joserfc.errors import InvalidKeyIdError
        from joserfc.util import urlsafe_b64decode

        assert self.keys is not None
        name = json.loads(urlsafe_b64decode(token.segments["header"]), cls=_Unique).get("kid")
        known = [key for key in self.keys.keys if name is None or key.kid == name]
        if len(known) != 1:
            raise InvalidKeyIdError("no key, or several, for the token")
        return known[0]

    def _checked(self, claims: dict[str, Any]) -> Bearer:
        from joserfc.errors import JoseError
        from joserfc.jwt import JWTClaimsRegistry

        rules = self._rules
        registry = JWTClaimsRegistry(
            now=lambda: self._wall_ms() // 1_000,
            leeway=_LEEWAY_S,
            iss={"essential": True, "value": rules.issuer},
            aud={"essential": True, "value": rules.audience},
            exp={"essential": True},
        )
        try:
            registry.validate(claims)
        except JoseError as error:
            raise BearerError(f"{error.description or error.error}".rstrip(".")) from None
        if not claims["exp"] < _END_MAX_S:  # also of no number
            raise BearerError("its end is no time")
        user = claims.get(rules.user_claim)
        if not isinstance(user, str) or not user:
            raise BearerError(f"it has no text in the claim {rules.user_claim}")
        return Bearer(user, int((claims["exp"] + _LEEWAY_S) * 1_000))
