"""Bearer tokens: verified with the provider's key set; the user that they name has its rights."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import hmac
import json
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.client import BadStatusLine, HTTPException
from itertools import chain, repeat
from pathlib import Path
from threading import Event, Thread
from typing import Any, cast

import grpc.aio
import pytest
from click.testing import CliRunner
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import padding
from joserfc import jwt
from joserfc.jwk import ECKey, KeySet, OctKey, RSAKey
from msgspec.structs import replace

from cometmq.auth.bearer import (
    JWKS_BYTES_MAX,
    BearerError,
    BearerRules,
    BearerVerifier,
    read_keys,
)
from cometmq.broker.access import identities, key_set
from cometmq.broker.access.guard import Guard
from cometmq.broker.access.key_set import check_place
from cometmq.broker.access.rechecks import Rechecks
from cometmq.broker.base.config import BrokerConfig
from cometmq.cli.root import cli
from cometmq.front.config import DoorConfig
from cometmq.front.context import RequestContext
from cometmq.proto import paths, v2
from cometmq.proto.errors import WireError
from cometmq.proto.native import is_available
from cometmq.tests.auth.test_guard import World
from cometmq.tests.auth.test_owners import put
from cometmq.tests.broker.access.test_quotas import FIRST, publishing, send, signed
from cometmq.tests.broker.access.test_quotas_of_storage import Turns
from cometmq.tests.broker.live import Live, create_topic, running, settings, telemetry, until
from cometmq.tests.broker.metrics.test_observed import samples
from cometmq.tests.harness.wire import Wire

ISSUER, AUDIENCE = "https://id.example", "cometmq"
DOORS = ["grpcio"] + (["native"] if is_available() else [])
FIRST_KEY = RSAKey.generate_key(2_048, {"kid": "one", "use": "sig"})
SECOND_KEY = ECKey.generate_key("P-256", {"kid": "two"})


def document(*keys: Any) -> bytes:
    """Return a key set."""
    return json.dumps({"keys": [key.as_dict(private=False) for key in keys]}).encode()


def token(key: Any = FIRST_KEY, alg: str = "RS256", kid: str = "one", **claims: Any) -> str:
    """Return a token that is accepted; a claim of None is left out."""
    usual = {"iss": ISSUER, "aud": AUDIENCE, "sub": "low", "exp": int(time.time()) + 600}
    chosen = {name: value for name, value in (usual | claims).items() if value is not None}
    return jwt.encode({"alg": alg, "kid": kid}, chosen, key, algorithms=[alg])


@pytest.fixture
def verifier() -> BearerVerifier:
    rules = BearerRules(ISSUER, AUDIENCE)
    found = BearerVerifier(rules, lambda: int(time.time() * 1_000))
    found.keys = read_keys(document(FIRST_KEY, SECOND_KEY))
    return found


def part(value: dict[str, Any]) -> str:
    return base64.urlsafe_b64encode(json.dumps(value).encode()).rstrip(b"=").decode()


def forged() -> dict[str, str]:
    """Return tokens that must not be accepted."""
    now = int(time.time())
    _, content, signature = token().split(".")
    public = FIRST_KEY.as_pem(private=False)
    hmac_content = f"{part({'alg': 'HS256', 'kid': 'one'})}.{content}"
    digest = hmac.digest(public, hmac_content.encode(), "sha256")
    by_public_key = base64.urlsafe_b64encode(digest).rstrip(b"=").decode()
    other = RSAKey.generate_key(2_048, {"kid": "one"})
    return {
        "none": f"{part({'alg': 'none', 'kid': 'one'})}.{content}.",
        "None": f"{part({'alg': 'None', 'kid': 'one'})}.{content}.{signature}",
        "HMAC with the public key": f"{hmac_content}.{by_public_key}",
        "another key of this name": token(other),
        "a key that the token brings": jwt.encode(
            {"alg": "RS256", "jwk": other.as_dict(private=False)},
            {"iss": ISSUER, "aud": AUDIENCE, "sub": "low", "exp": now + 600},
            other,
        ),
        "another content": token(sub="admin").rsplit(".", 1)[0] + "." + signature,
        "expired": token(exp=now - 120),
        "without an end": token(exp=None),
        "an end that is no number": token(exp="later"),
        "an end without bounds": token(exp=1e308),
        "an end that is not a number": token(exp=float("nan")),
        "not valid yet": token(nbf=now + 600),
        "another issuer": token(iss="https://other.example"),
        "without an issuer": token(iss=None),
        "another audience": token(aud=["other"]),
        "without an audience": token(aud=None),
        "a key that is not in the set": token(kid="three"),
        "a key of another kind": token(alg="RS256", kid="two"),
        "without a user": token(sub=None),
        "a user that is no text": token(sub=["admin"]),
        "no token": "x.y",
        "nothing": "",
        "too long": "a" * 9_000,
    }


def twice(head: str, content: str) -> str:
    """Return a token of these texts, signed by the provider."""
    parts = [base64.urlsafe_b64encode(text.encode()).rstrip(b"=") for text in (head, content)]
    signed_text = b".".join(parts)
    key = FIRST_KEY.get_op_key("sign")
    signature = key.sign(signed_text, padding.PKCS1v15(), hashes.SHA256())
    return b".".join((signed_text, base64.urlsafe_b64encode(signature).rstrip(b"="))).decode()


@pytest.mark.parametrize(
    ("head", "content"),
    [
        ("", ', "exp": 9999999999'),
        ("", ', "sub": "admin"'),
        ("", ', "extra": {"a": 1, "a": 2}'),
        (', "alg": "RS256"', ""),
        (', "kid": "one"', ""),
        (', "typ": "JWT"', ""),
    ],
)
def test_a_name_that_is_given_twice_is_a_refusal(
    verifier: BearerVerifier, head: str, content: str
) -> None:
    usual = '{"alg": "RS256", "kid": "one", "typ": "JWT"'
    claims = f'{{"iss": "{ISSUER}", "aud": "{AUDIENCE}", "sub": "low", "exp": 9999999998'
    assert verifier.verify(twice(usual + "}", claims + "}")).user == "low"
    with pytest.raises(BearerError, match="malformed"):
        verifier.verify(twice(f"{usual}{head}}}", f"{claims}{content}}}"))


@pytest.mark.parametrize("name", forged())
def test_a_forged_token_is_refused(verifier: BearerVerifier, name: str) -> None:
    with pytest.raises(BearerError):
        verifier.verify(forged()[name])


def test_tokens_of_the_keys_of_the_set_name_a_user(verifier: BearerVerifier) -> None:
    assert verifier.verify(token()).user == "low"
    assert verifier.verify(token(SECOND_KEY, "ES256", "two", aud=["x", AUDIENCE])).user == "low"


def test_another_key_set_ends_the_former_keys_and_an_unknown_key_asks_for_it(
    verifier: BearerVerifier,
) -> None:
    asked = []
    verifier.on_unknown_key = lambda: asked.append(1)
    verifier.keys = read_keys(document(SECOND_KEY))
    with pytest.raises(BearerError, match="not in the provider's key set"):
        verifier.verify(token())
    assert asked == [1]
    assert verifier.verify(token(SECOND_KEY, "ES256", "two")).user == "low"


def test_only_id_tokens_and_access_tokens_are_accepted(verifier: BearerVerifier) -> None:
    claims = {"iss": ISSUER, "aud": AUDIENCE, "sub": "low", "exp": int(time.time()) + 600}
    header = {"alg": "RS256", "kid": "one"}
    for typ in ("JWT", "jwt", "at+jwt", "application/at+jwt"):
        assert verifier.verify(jwt.encode({**header, "typ": typ}, claims, FIRST_KEY)).user == "low"
    for typ in ("logout+jwt", "dpop+jwt", ""):
        with pytest.raises(BearerError):
            verifier.verify(jwt.encode({**header, "typ": typ}, claims, FIRST_KEY))


@pytest.mark.parametrize(
    "text",
    [
        *(b"", b"{}", b"[]", b'{"keys": []}', b'{"keys": [1]}', b"[" * 100_000, b"x" * 300_000),
        document(FIRST_KEY).replace(b'"kid"', b'"kid": "other", "kid"'),
    ],
)
def test_what_is_no_key_set_is_refused(text: bytes) -> None:
    with pytest.raises(ValueError):
        read_keys(text)


def test_secrets_and_keys_for_encryption_are_no_keys_of_signatures() -> None:
    secret = OctKey.generate_key(256, {"kid": "s"})
    encrypting = RSAKey.generate_key(2_048, {"kid": "e", "use": "enc"})
    with pytest.raises(ValueError):
        read_keys(json.dumps({"keys": [secret.as_dict(private=True)]}).encode())
    found = read_keys(document(FIRST_KEY, encrypting))
    assert isinstance(found, KeySet) and [key.kid for key in found.keys] == ["one"]


def test_keys_of_an_unknown_kind_do_not_spoil_the_set() -> None:
    keys = json.loads(document(FIRST_KEY))["keys"]
    keys += [{"kty": "EC", "kid": "new", "crv": "P-999", "x": "AA", "y": "AA"}, {"kty": "RSA"}]
    found = read_keys(json.dumps({"keys": keys}).encode())
    assert [key.kid for key in found.keys] == ["one"]


class Kept(dict[str, str]):
    """Also remembers the reasons so far."""

    def __init__(self) -> None:
        super().__init__()
        self.reasons: list[str] = []

    def __setitem__(self, setting: str, reason: str) -> None:
        self.reasons.append(reason)
        super().__setitem__(setting, reason)


async def test_a_broken_answer_of_the_provider_keeps_the_former_keys(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    answers: list[bytes | Exception] = [
        document(FIRST_KEY),
        BadStatusLine("?"),
        document(FIRST_KEY, SECOND_KEY),
    ]

    def read(_place: str) -> bytes:
        answer = answers.pop(0) if len(answers) > 1 else answers[0]
        if isinstance(answer, Exception):
            raise answer
        return answer

    used: list[list[str | None]] = []
    kept = Kept()
    monkeypatch.setattr(key_set, "read", read)
    monkeypatch.setattr(key_set, "_FILE_S", 0.001)

    def use(keys: KeySet) -> None:
        used.append([key.kid for key in keys.keys])

    reader = key_set.KeySetReader("keys.json", use, kept)
    await reader.start()
    try:
        await until(lambda: len(used) == 2)
    finally:
        await reader.close()
    assert used == [["one"], ["one", "two"]]
    assert (kept.reasons, kept) == (["?"], {})


async def test_a_provider_that_does_not_answer_does_not_hold_the_start(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    answers = Event()

    def read(_place: str) -> bytes:
        answers.wait()
        return document(FIRST_KEY)

    used: list[Any] = []
    monkeypatch.setattr(key_set, "read", read)
    monkeypatch.setattr(key_set, "_START_S", 0.001)
    reader = key_set.KeySetReader("https://id.example/keys", used.append, {})
    try:
        await reader.start()
        assert not used
        answers.set()
        await until(lambda: len(used) == 1)
    finally:
        answers.set()
        await reader.close()


@contextmanager
def answering(pieces: Iterator[bytes], pause_s: float = 0.0) -> Iterator[str]:
    """Provide the URL of a server that answers one request with these pieces, as long as it may."""
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve() -> None:
            with contextlib.suppress(OSError), listener.accept()[0] as link:
                link.recv(4_096)
                for piece in pieces:
                    link.sendall(piece)
                    time.sleep(pause_s)

        thread = Thread(target=serve)
        thread.start()
        yield f"http://127.0.0.1:{listener.getsockname()[1]}/keys"
    thread.join()


@pytest.mark.parametrize(
    "begin",
    [b"HTTP/1.1 200 OK\r\n\r\n", b"HTTP/1.1 200 OK\r\nx: ", b"HTTP/1.1 200 OK\r\n"],
    ids=["body", "header", "headers"],
)
def test_an_answer_that_drips_ends_at_its_time_limit(
    monkeypatch: pytest.MonkeyPatch, begin: bytes
) -> None:
    monkeypatch.setattr(key_set, "_FETCH_S", 0.2)
    drop = b"x: y\r\n" if begin.endswith(b"OK\r\n") else b"{"
    with (
        answering(chain([begin], repeat(drop)), 0.05) as place,
        pytest.raises((TimeoutError, HTTPException)),
    ):
        key_set.read(place)


def test_an_answer_without_an_end_is_read_up_to_its_limit() -> None:
    pieces = chain([b"HTTP/1.1 200 OK\r\n\r\n"], repeat(bytes(65_536)))
    with answering(pieces) as place:
        found = key_set.read(place)
    assert len(found) == JWKS_BYTES_MAX + 1
    with pytest.raises(ValueError, match="more than"):
        read_keys(found)


def test_an_answer_is_read_and_another_status_or_place_is_an_error() -> None:
    with answering(iter([b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}"])) as place:
        assert key_set.read(f"{place}?kind=all") == b"{}"
    moved = b"HTTP/1.1 302 Found\r\nLocation: http://127.0.0.1:1/\r\nContent-Length: 0\r\n\r\n"
    with answering(iter([moved])) as place, pytest.raises(OSError, match="302"):
        key_set.read(place)


def tokens_of(verifier: BearerVerifier) -> World:
    """Return a guard that accepts tokens, with a user that they name."""
    world = World(bearers=verifier)
    world.now_ms = int(time.time() * 1_000)
    world.user("low", ("Topic:orders", "Pub", True))
    return world


def test_the_end_of_a_token_is_noted_also_when_it_is_not_kept(
    verifier: BearerVerifier, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(identities, "_TOKENS_MAX", 1)
    world = tokens_of(verifier)
    early, late = (
        context("127.0.0.1:1", False, (("authorization", f"Bearer {token(exp=end_s)}"),))
        for end_s in (int(time.time()) + 60, int(time.time()) + 600)
    )
    assert world.send(early) == world.send(late) == ""
    lapses = world.identities.lapses()
    world.now_ms += 60_000 + 61_000
    assert world.identities.lapses() == lapses + 1 == world.identities.lapses()
    assert not world.guard.still("low", (), early) and world.guard.still("low", (), late)


def test_the_end_of_a_token_ends_streams_and_no_polls() -> None:
    version, lapses, ended, checked = [0], [0], [], []

    def streams() -> Iterator[None]:
        checked.append(1)
        yield

    loop = Turns()
    rechecks = Rechecks(
        cast(Any, loop), lambda: version[0], lambda: lapses[0], lambda: ended.append(1), streams
    )
    rechecks.start()
    assert (checked, ended) == ([], [])
    lapses[0] += 1
    rechecks.start()
    assert (checked, ended) == ([1], [])
    version[0] += 1
    rechecks.start()
    assert (checked, ended) == ([1, 1], [1])


def test_a_key_set_comes_from_a_file_or_over_tls() -> None:
    for place in ("/etc/keys.json", "https://id.example/keys", "http://127.0.0.1:1/keys"):
        check_place(place)
    for place in ("http://id.example/keys", "ftp://id.example/keys"):
        with pytest.raises(ValueError):
            check_place(place)
    with pytest.raises(ValueError, match="oidcAudience"):
        BrokerConfig(oidc_issuer=ISSUER, oidc_jwks="keys.json", authentication_enabled=True)


def bearing(live: Live, text: str, client_id: str = "low@1") -> Wire:
    """Return a connection that sends a token."""
    wire = live.client(client_id)
    wire.metadata = (*wire.metadata, ("authorization", f"Bearer {text}"))
    return wire


@pytest.mark.parametrize("door", DOORS)
async def test_the_user_of_a_token_has_exactly_its_rights(tmp_path: Path, door: str) -> None:
    keys = tmp_path / "keys.json"
    keys.write_bytes(document(FIRST_KEY))
    chosen = settings(
        tmp_path / "data",
        authentication_enabled=True,
        authorization_enabled=True,
        init_authentication_user=FIRST,
        oidc_issuer=ISSUER,
        oidc_jwks=str(keys),
        oidc_audience=AUDIENCE,
    )
    async with running(chosen, door=DoorConfig(front_door=door)) as live:
        async with signed(live, "admin", "admin-secret") as admin:
            for topic in ("orders", "others"):
                await create_topic(admin, topic)
        put(live, "low", ("Topic:orders", "Pub"))
        async with bearing(live, token()) as low:
            assert (await send(low, "orders")).code == v2.OK
            denied = await send(low, "others")
            assert denied.code == v2.UNAUTHORIZED and "no permission" in denied.message
            stream = telemetry(low)
            await stream.write(publishing("orders"))
            assert (await stream.read()).HasField("settings")
            live.node.metadata.put_user(replace(live.node.metadata.users["low"], enabled=False))
            assert (await send(low, "orders")).code == v2.UNAUTHORIZED
            with pytest.raises(grpc.aio.AioRpcError, match="has lost a right"):
                await stream.read()
        for claims in ({"sub": "absent"}, {"exp": int(time.time()) - 120}, {"aud": "other"}):
            async with bearing(live, token(**claims), "other@1") as wire:
                assert (await send(wire, "orders")).code == v2.UNAUTHORIZED


async def test_a_token_is_not_accepted_in_plaintext_from_another_machine(tmp_path: Path) -> None:
    keys = tmp_path / "keys.json"
    keys.write_bytes(document(FIRST_KEY))
    chosen = settings(
        tmp_path / "data",
        authentication_enabled=True,
        oidc_issuer=ISSUER,
        oidc_jwks=str(keys),
        oidc_audience=AUDIENCE,
    )
    async with running(chosen) as live:
        put(live, "low")
        port = live.server.instance._client_port
        assert port is not None and port.guard is not None
        guard = port.guard
        header = (("authorization", f"Bearer {token()}"),)
        for peer, tls in (("10.0.0.9:1", False), ("", False)):
            with pytest.raises(WireError, match="TLS"):
                guard.check(paths.HEARTBEAT, v2.HeartbeatRequest(), context(peer, tls, header))
        guard.check(paths.HEARTBEAT, v2.HeartbeatRequest(), context("10.0.0.9:1", True, header))
        keys.write_bytes(document(SECOND_KEY))
        await until(lambda: refused(guard, context("10.0.0.9:1", True, header)))


async def test_a_key_set_that_cannot_be_read_is_shown_by_a_metric_and_the_doctor(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(key_set, "_FILE_S", 0.01)
    keys = tmp_path / "keys.json"
    keys.write_bytes(document(FIRST_KEY))
    chosen = settings(
        tmp_path / "data",
        authentication_enabled=True,
        init_authentication_user=FIRST,
        oidc_issuer=ISSUER,
        oidc_jwks=str(keys),
        oidc_audience=AUDIENCE,
    )
    monkeypatch.setenv("COMETMQ_ACCESS_KEY", "admin")
    monkeypatch.setenv("COMETMQ_SECRET_KEY", "admin-secret")
    words = ("doctor", "security", "-o", "json", "--endpoint")
    async with running(chosen) as live:

        async def shown() -> tuple[list[str], list[dict[str, str]]]:
            found = (await samples(live)).get("cometmq_replacement_unusable", [])
            command = (*words, live.bound.client)
            done = await asyncio.to_thread(CliRunner().invoke, cli, command)
            rows = [each for each in json.loads(done.stdout) if "oidcJwks" in each["what"]]
            return [each.labels["setting"] for each in found], rows

        assert await shown() == ([], [])
        keys.write_bytes(b"{}")
        kept = live.node.replication.links.kept
        await until(lambda: bool(kept))
        metrics, (row,) = await shown()
        assert (metrics, row["verdict"]) == (["oidcJwks"], "bad")
        assert "no key set" in row["found"] and str(keys) in row["advice"]
        keys.write_bytes(document(FIRST_KEY))
        await until(lambda: not kept)
        assert await shown() == ([], [])


def context(peer: str, tls: bool, header: tuple[tuple[str, str], ...]) -> RequestContext:
    return RequestContext(peer=peer, tls=tls, metadata=header)


def refused(guard: Guard, ctx: RequestContext) -> bool:
    """Whether the guard refuses a heartbeat."""
    try:
        guard.check(paths.HEARTBEAT, v2.HeartbeatRequest(), ctx)
    except WireError:
        return True
    return False
