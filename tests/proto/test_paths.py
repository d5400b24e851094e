"""`paths` has a constant for every method of every service, and every `paths.NAME` in use
exists."""

import re
from pathlib import Path

import pytest

from cometmq.proto import paths, v1, v2
from cometmq.proto.methods import rpc_methods

ROOT = Path(__file__).resolve().parents[2]
SERVICES = {
    "apache.rocketmq.v2": ("MessagingService", "Admin"),
    "cometmq.v1": (
        *("NameServer", "HaReplication", "GroupController", "ReplicaControl", "MetaCell"),
        *("Admin", "Test"),
    ),
}


def test_every_method_has_a_constant() -> None:
    methods = {
        rpc.path
        for package, names in SERVICES.items()
        for name in names
        for rpc in rpc_methods(f"{package}.{name}").values()
    }
    constants = {value for name, value in vars(paths).items() if name[0].isupper()}
    of_v2 = {value for value in constants if isinstance(value, str) and value[-1] != "/"}
    of_v1 = set(paths._v1_constants().values())
    assert of_v2 | of_v1 == methods
    assert all(getattr(paths, name) == path for name, path in paths._v1_constants().items())


def test_every_constant_in_use_exists() -> None:
    used = set()
    for file in ROOT.rglob("*.py"):
        if not any(part.startswith(".") for part in file.relative_to(ROOT).parts):
            used |= set(re.findall(r"\bpaths\.([A-Z][A-Z_0-9]+)\b", file.read_text("utf-8")))
    used -= {"NAME", "NO_SUCH_METHOD"}
    assert used
    assert not {name for name in used if not isinstance(getattr(paths, name, None), str)}


def test_an_unknown_constant_raises_attribute_error() -> None:
    with pytest.raises(AttributeError, match=r"paths\.NO_SUCH_METHOD"):
        _ = paths.NO_SUCH_METHOD


def test_a_method_has_the_classes_and_the_streaming_of_its_descriptor() -> None:
    receive = rpc_methods("apache.rocketmq.v2.MessagingService")["ReceiveMessage"]
    assert receive.path == paths.RECEIVE_MESSAGE
    assert (receive.request, receive.response) == (
        v2.ReceiveMessageRequest,
        v2.ReceiveMessageResponse,
    )
    assert (receive.client_streaming, receive.server_streaming) == (False, True)
    assert rpc_methods("cometmq.v1.Admin")["GetConfig"].request is v1.GetConfigRequest
