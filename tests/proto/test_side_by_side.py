"""One process can hold our protocol modules and the official client's, in either order.

Each case runs in an interpreter of its own: what is imported first claims the default pool.
"""

import subprocess
import sys

import pytest

OURS = "from cometmq.proto import v1, v2"
THEIRS = (
    "import rocketmq; from rocketmq.grpc_protocol import admin_pb2, definition_pb2, service_pb2"
)

BOTH_WORK = """
theirs = service_pb2.SendMessageRequest(messages=[definition_pb2.Message(body=b"x")])
theirs.messages[0].system_properties.born_timestamp.FromMilliseconds(1500)
ours = v2.SendMessageRequest.FromString(theirs.SerializeToString())
assert ours.messages[0].system_properties.born_timestamp.ToMilliseconds() == 1500
assert ours.SerializeToString() == theirs.SerializeToString()
assert type(ours) is not type(theirs)
"""

DEFAULT_POOL_UNTOUCHED = """
from google.protobuf import descriptor_pool
for name in ("apache.rocketmq.v2.Message", "cometmq.v1.RegisterRequest"):
    try:
        descriptor_pool.Default().FindMessageTypeByName(name)
    except KeyError:
        continue
    raise SystemExit(f"{name} is in the default pool")
"""


def run(code: str) -> None:
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("order", [(OURS, THEIRS), (THEIRS, OURS)], ids=["ours", "theirs"])
def test_both_work_in_one_process(order: tuple[str, str]) -> None:
    run("\n".join((*order, BOTH_WORK)))


def test_the_default_pool_stays_free() -> None:
    run(OURS + DEFAULT_POOL_UNTOUCHED)
