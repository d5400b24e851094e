"""Sealed secrets: users' secret keys, encrypted with AES-256-GCM for the metadata log.

A signature can be checked only with the plain secret, so a hash cannot be stored. Format: one byte
version (2), 16 bytes salt, 4 bytes key id, 12 bytes nonce, ciphertext with tag; the user's name is
authenticated. The salt is random, made with the first secret of a log and used for the others, so
that keys guessed for one cluster are of no use for another. Version 1 has no salt. The key id
distinguishes a wrong key from a damaged record.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable

VERSION, _UNSALTED = 2, 1
_SALT_BYTES, _ID_BYTES, _NONCE_BYTES, _TAG_BYTES = 16, 4, 12, 16
#: Of version 1: the same everywhere.
_COMMON_SALT = b"cometmq user secrets"
#: Salts whose keys are kept. A log has one, and another for each moment with two leaders.
_KEYS_MAX = 16
# 16 MiB and about 50 ms, once for each salt: a short cluster token is costly to guess from a log.
_SCRYPT = {"n": 1 << 14, "r": 8, "p": 1, "maxmem": 64 << 20}


class SealError(ValueError):
    """A secret cannot be decrypted; the message is the reason."""


class SecretKey:
    """Encrypts and decrypts the secrets of all users."""

    def __init__(self, material: bytes) -> None:
        """`material` is the content of the key file, or another secret that all replicas have."""
        self._material = material
        #: By salt.
        self._keys: dict[bytes, bytes] = {}
        #: Of the secrets that are sealed here; random until another one is known.
        self._salt = b""

    def prepare(self, known: Iterable[bytes]) -> None:
        """Derive the keys of sealed secrets, which takes 50 ms for each salt."""
        for salt in dict.fromkeys(map(_salt_of, known)):
            self._derived(salt)

    def seal(self, user: str, secret: str, known: Iterable[bytes] = ()) -> bytes:
        """Encrypt a user's secret, with the salt of the sealed secrets that are `known`."""
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM

        salts = (salt for each in known if (salt := _salt_of(each)) != _COMMON_SALT)
        self._salt = next(salts, self._salt) or os.urandom(_SALT_BYTES)
        key, nonce = self._derived(self._salt), os.urandom(_NONCE_BYTES)
        sealed = AESGCM(key).encrypt(nonce, secret.encode(), user.encode())
        return bytes((VERSION,)) + self._salt + _id_of(key) + nonce + sealed

    def open(self, user: str, sealed: bytes) -> bytes:
        """Decrypt a user's secret. Raises SealError."""
        from cryptography.exceptions import InvalidTag
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM

        version = sealed[0] if sealed else 0
        id_at = 1 if version == _UNSALTED else 1 + _SALT_BYTES
        nonce_at = id_at + _ID_BYTES
        data_at = nonce_at + _NONCE_BYTES
        if len(sealed) < data_at + _TAG_BYTES or version not in (VERSION, _UNSALTED):
            raise SealError(f"the stored secret of user {user} has an unknown format")
        key = self._derived(_salt_of(sealed))
        if sealed[id_at:nonce_at] != _id_of(key):
            raise SealError(
                f"the secret of user {user} was encrypted with another key: give every replica "
                "the same authenticationKeyFile (or clusterToken)"
            )
        try:
            return AESGCM(key).decrypt(sealed[nonce_at:data_at], sealed[data_at:], user.encode())
        except InvalidTag:
            raise SealError(f"the stored secret of user {user} is damaged") from None

    def _derived(self, salt: bytes) -> bytes:
        key = self._keys.get(salt)
        if key is None:
            key = hashlib.scrypt(self._material, salt=salt, dklen=32, **_SCRYPT)
            if len(self._keys) >= _KEYS_MAX:
                self._keys.clear()
            self._keys[salt] = key
        return key


def _salt_of(sealed: bytes) -> bytes:
    """Return the salt of a sealed secret."""
    return sealed[1 : 1 + _SALT_BYTES] if sealed[:1] == bytes((VERSION,)) else _COMMON_SALT


def _id_of(key: bytes) -> bytes:
    return hashlib.sha256(key).digest()[:_ID_BYTES]
