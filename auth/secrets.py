"""Sealed secrets: users' secret keys, encrypted with AES-256-GCM for the metadata log.

A signature can be checked only with the plain secret, so a hash cannot be stored. Format: one byte
version (1), 4 bytes key id, 12 bytes nonce, ciphertext with tag; the user's name is authenticated.
The key id distinguishes a wrong key from a damaged record.
"""

from __future__ import annotations

import hashlib
import os

VERSION = 1
_ID_BYTES, _NONCE_BYTES, _TAG_BYTES = 4, 12, 16
_HEADER = 1 + _ID_BYTES
_SALT = b"cometmq user secrets"
# 16 MiB and about 50 ms, once a start: a short cluster token is costly to guess from a log.
_SCRYPT = {"n": 1 << 14, "r": 8, "p": 1, "maxmem": 64 << 20}


class SealError(ValueError):
    """A secret cannot be decrypted; the message is the reason."""


class SecretKey:
    """The key that encrypts and decrypts the secrets of all users."""

    def __init__(self, material: bytes) -> None:
        """`material` is the content of the key file, or another secret that all replicas have."""
        self._key = hashlib.scrypt(material, salt=_SALT, dklen=32, **_SCRYPT)
        self.id = hashlib.sha256(self._key).digest()[:_ID_BYTES]

    def seal(self, user: str, secret: str) -> bytes:
        """Encrypt a user's secret."""
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM

        nonce = os.urandom(_NONCE_BYTES)
        sealed = AESGCM(self._key).encrypt(nonce, secret.encode(), user.encode())
        return bytes((VERSION,)) + self.id + nonce + sealed

    def open(self, user: str, sealed: bytes) -> bytes:
        """Decrypt a user's secret. Raises SealError."""
        from cryptography.exceptions import InvalidTag
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM

        if len(sealed) < _HEADER + _NONCE_BYTES + _TAG_BYTES or sealed[0] != VERSION:
            raise SealError(f"the stored secret of user {user} has an unknown format")
        if sealed[1:_HEADER] != self.id:
            raise SealError(
                f"the secret of user {user} was encrypted with another key: give every replica "
                "the same authenticationKeyFile (or clusterToken)"
            )
        nonce, data = sealed[_HEADER : _HEADER + _NONCE_BYTES], sealed[_HEADER + _NONCE_BYTES :]
        try:
            return AESGCM(self._key).decrypt(nonce, data, user.encode())
        except InvalidTag:
            raise SealError(f"the stored secret of user {user} is damaged") from None
