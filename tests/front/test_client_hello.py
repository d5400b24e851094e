"""Does a TLS client name HTTP/2: hellos of OpenSSL, cut and damaged."""

from __future__ import annotations

import ssl

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cometmq.front.shared.client_hello import HEAD, names_no_http2, record_size


def hello(*protocols: str, name: str | None = "localhost") -> bytes:
    """Return the first record of a client."""
    context = ssl.create_default_context()
    context.check_hostname = False
    if protocols:
        context.set_alpn_protocols(protocols)
    outgoing = ssl.MemoryBIO()
    client = context.wrap_bio(ssl.MemoryBIO(), outgoing, server_hostname=name)
    with pytest.raises(ssl.SSLWantReadError):
        client.do_handshake()
    return outgoing.read()


@pytest.mark.parametrize(
    ("protocols", "expected"),
    [((), True), (("http/1.1",), True), (("h2",), False), (("grpc-exp", "h2"), False)],
)
@pytest.mark.parametrize("name", ["localhost", None])
def test_the_protocols_of_a_hello_are_found(
    protocols: tuple[str, ...], expected: bool, name: str | None
) -> None:
    record = hello(*protocols, name=name)
    assert names_no_http2(record) is expected
    assert record_size(record[:HEAD]) == len(record)


@settings(deadline=None)  # a slow machine stalls within an example
@given(st.data())
def test_what_is_no_complete_hello_is_left_to_the_handshake(data: st.DataObject) -> None:
    record = hello()
    size = data.draw(st.integers(0, len(record) - 1))
    assert not names_no_http2(record[:size])
    names_no_http2(data.draw(st.binary(max_size=300)))
    place = data.draw(st.integers(0, len(record) - 1))
    names_no_http2(record[:place] + data.draw(st.binary(min_size=1, max_size=3)) + record[place:])
