"""Signatures: the headers that the official clients send, and every malformed one."""

import hashlib
import hmac

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cometmq.auth.signature import authorization, is_signed, parse_authorization, signed_ms
from cometmq.proto import v2
from cometmq.proto.errors import WireError

SECRET, TIME = "secret-key", "20261123T060428Z"
DIGEST = hmac.new(SECRET.encode(), TIME.encode(), hashlib.sha1).hexdigest()


def header(credential: str, digest: str) -> str:
    return (
        f"MQv2-HMAC-SHA1 Credential={credential}, SignedHeaders=x-mq-date-time, Signature={digest}"
    )


@pytest.mark.parametrize(
    "text",
    [
        pytest.param(header("ak", DIGEST), id="Python and Rust: lower case"),
        pytest.param(header("ak", DIGEST.upper()), id="Java, C# and Node: upper case"),
        pytest.param(header("ak//Rocketmq", DIGEST), id="Go: empty region"),
        pytest.param(header("ak/cn/RocketMQ", DIGEST), id="C++: region and service"),
    ],
)
def test_the_header_of_each_client_is_accepted(text: str) -> None:
    credential = parse_authorization(text)
    assert credential.user == "ak"
    assert is_signed(credential, SECRET.encode(), TIME)
    assert not is_signed(credential, b"another", TIME)
    assert not is_signed(credential, SECRET.encode(), TIME + " ")


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("MQv2-HMAC-SHA1", "authentication header is incorrect."),
        ("MQv2-HMAC-SHA1 Credential=a, Signature=xyz", "authentication header is incorrect."),
        ("MQv2-HMAC-SHA1 Signature=00", "authentication header is incorrect."),
        ("MQv2-HMAC-SHA1 Credential=a", "authentication header is incorrect."),
        (header("", DIGEST), "username cannot be null."),
        (header("//Rocketmq", DIGEST), "username cannot be null."),
    ],
)
def test_a_malformed_header_is_unauthorized(text: str, sentence: str) -> None:
    with pytest.raises(WireError) as raised:
        parse_authorization(text)
    assert (raised.value.code, raised.value.message) == (v2.UNAUTHORIZED, sentence)


@given(st.text(max_size=200))
def test_any_text_is_parsed_or_unauthorized(text: str) -> None:
    try:
        parse_authorization(text)
    except WireError as error:
        assert error.code == v2.UNAUTHORIZED


ENCODABLE = st.characters(codec="utf-8")


@given(st.text(ENCODABLE, min_size=1), st.text(ENCODABLE, min_size=1))
def test_a_made_header_is_accepted(secret: str, time: str) -> None:
    credential = parse_authorization(authorization("user-1", secret, time))
    assert credential.user == "user-1"
    assert is_signed(credential, secret.encode(), time)


def test_the_times_that_clients_send_are_read() -> None:
    assert signed_ms("20261123T060428Z") == 1_795_413_868_000
    assert signed_ms("2026-11-23T07:04:28.5+01:00") == 1_795_413_868_500
    for text in ("", "now", "20261399T060428Z", "2026-11-23T07:04:28"):
        assert signed_ms(text) is None
