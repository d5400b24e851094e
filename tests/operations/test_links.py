"""Links are objects: programs in one process reach several clusters, each with its own secrets."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import pytest

from cometmq.operations.connection import Caller
from cometmq.operations.contexts import Context
from cometmq.operations.links import Links, NamedContext

PROD = Context("10.0.0.1:8081", access_key="admin", secret_key="key", tls=True)
LISTED = "10.0.0.3:10912"


@pytest.fixture(autouse=True)
def _no_cluster_here(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    for name in [name for name in os.environ if name.startswith("COMETMQ_")]:
        monkeypatch.delenv(name)


def links_of(context: Context, token: Path) -> Links:
    token.write_text(f"{token.name}\n")
    named: NamedContext = token.name, replace(context, token_file=str(token))
    return Links(lambda: named)


def test_links_of_two_contexts_keep_their_secrets_apart(tmp_path: Path) -> None:
    prod = links_of(PROD, tmp_path / "prod")
    other = links_of(Context("10.0.0.2:8081", tls=True), tmp_path / "other")
    prod.list_addresses("10.0.0.1:8081", [LISTED])
    assert prod.token_metadata(LISTED) == (("x-cometmq-token", "prod"),)
    assert other.token_metadata(LISTED) == ()
    assert prod.credentials("10.0.0.1:8081") is not None
    for endpoint in ("10.0.0.1:8081", "10.0.0.2:8081"):
        assert other.credentials(endpoint) is None
    assert other.token_metadata("10.0.0.2:8081") == (("x-cometmq-token", "other"),)


def test_calls_carry_the_token_and_the_user_of_their_links(tmp_path: Path) -> None:
    caller = Caller("10.0.0.1:8081", links_of(PROD, tmp_path / "prod"))
    metadata = dict(caller.metadata())
    assert metadata["x-cometmq-token"] == "prod"
    assert "Credential=admin" in metadata["authorization"]
    bare = dict(Caller("10.0.0.1:8081", Links()).metadata())
    assert not {"x-cometmq-token", "authorization"} & set(bare)
