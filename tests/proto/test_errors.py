"""The table of codes, and the two exceptions that carry them."""

import pickle

from cometmq.proto import errors, v2


def test_the_table_has_every_code_and_its_name() -> None:
    assert set(errors.CODES) == set(v2.Code.values())
    assert errors.code_name(v2.TOPIC_NOT_FOUND) == "TOPIC_NOT_FOUND"
    assert errors.code_name(12345) == "12345"


def test_unknown_outcomes_are_retriable() -> None:
    for info in errors.CODES.values():
        assert info.retriable or not info.outcome_unknown


def test_retriable_codes() -> None:
    assert errors.is_retriable(v2.TOO_MANY_REQUESTS)
    assert errors.is_retriable(v2.SLAVE_PERSISTENCE_TIMEOUT)
    assert not errors.is_retriable(v2.OK)
    assert not errors.is_retriable(v2.MESSAGE_BODY_TOO_LARGE)
    assert not errors.is_retriable(12345)


def test_a_wire_error_becomes_a_status() -> None:
    error = errors.WireError(v2.ILLEGAL_TOPIC, "topic is empty")
    assert error.status() == v2.Status(code=v2.ILLEGAL_TOPIC, message="topic is empty")
    assert str(error) == "ILLEGAL_TOPIC (40002): topic is empty"
    again = pickle.loads(pickle.dumps(error))
    assert (again.code, again.message) == (error.code, error.message)


def test_an_rpc_failure_shows_its_name() -> None:
    failure = errors.RpcFailure(errors.UNIMPLEMENTED, "no such method")
    assert str(failure) == "UNIMPLEMENTED (12): no such method"
    assert failure.grpc_code == 12
