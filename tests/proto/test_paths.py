"""`paths` names every method of every service, and nothing else."""

from google.protobuf import descriptor_pb2

from cometmq.proto import (
    admin_pb2,
    control_pb2,
    controller_pb2,
    definition_pb2,
    ha_pb2,
    nameserver_pb2,
    paths,
    service_pb2,
    test_pb2,
)

MODULES = (
    admin_pb2,
    control_pb2,
    controller_pb2,
    definition_pb2,
    ha_pb2,
    nameserver_pb2,
    service_pb2,
    test_pb2,
)


def test_paths_are_the_methods_of_the_descriptors() -> None:
    methods = set()
    for module in MODULES:
        file = descriptor_pb2.FileDescriptorProto.FromString(module.DESCRIPTOR.serialized_pb)
        for service in file.service:
            prefix = f"/{file.package}.{service.name}/"
            methods |= {prefix + method.name for method in service.method}
    named = [value for name, value in vars(paths).items() if name.isupper()]
    assert {path for path in named if not path.endswith("/")} == methods
    assert len(named) == len(set(named))
    prefixes = {path for path in named if path.endswith("/")}
    assert {path[: path.rindex("/") + 1] for path in methods} == prefixes
