"""Weak cluster tokens are refused by every server, with what is needed."""

import pytest

from cometmq.broker.proxy.base.config import ProxyConfig
from cometmq.ha.config import HaConfig
from cometmq.nameserver.config import NameserverConfig
from cometmq.nodes.cluster_token import check_cluster_token

_WEAK = {
    "a": "1 characters",
    "fifteen-letters": "15 characters",
    "abcabcabcabcabcabcabc": "3 different",
    "replace-this-secret": "placeholder",
}


@pytest.mark.parametrize("token", _WEAK)
@pytest.mark.parametrize("config", [HaConfig, NameserverConfig, ProxyConfig])
def test_a_weak_cluster_token_is_refused_by_every_server(config: type, token: str) -> None:
    with pytest.raises(ValueError, match=f"too weak: .*{_WEAK[token]}.*openssl rand"):
        config(cluster_token=token)


def test_random_tokens_and_none_are_accepted() -> None:
    for token in ("0f9c1e77ab32d845", ""):
        check_cluster_token(token)
