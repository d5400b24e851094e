"""Commands of this version call nodes of an earlier one, which lack the newest methods."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import grpc
from click.testing import CliRunner

from cometmq.cli.root import cli
from cometmq.proto import paths, v1, v2


def test_a_broker_without_the_list_of_groups_is_a_group_of_its_own() -> None:
    topic = v1.TopicConfig(name="orders", read_queues=3, write_queues=3, perm=6)
    answer = v1.ListTopicsResponse(code=v2.OK, message="OK", topics=[topic])
    service, _, method = paths.LIST_TOPICS.strip("/").partition("/")
    handler = grpc.unary_unary_rpc_method_handler(
        lambda _request, _context: answer.SerializeToString()
    )
    server = grpc.server(ThreadPoolExecutor(1))
    server.add_generic_rpc_handlers(
        (grpc.method_handlers_generic_handler(service, {method: handler}),)
    )
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    try:
        words = ["topic", "list", "--endpoint", f"127.0.0.1:{port}"]
        done = CliRunner().invoke(cli, words, catch_exceptions=False)
    finally:
        server.stop(0)
    assert done.exit_code == 0 and "orders" in done.output and "brokers" not in done.output
