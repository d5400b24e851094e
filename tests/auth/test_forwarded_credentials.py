"""Credentials end at the broker that checks them: nothing that it sends to clients has those of
another client, and nameservers, which check none, get none."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from cometmq.remoting.admin_codes import Admin
from cometmq.remoting.codes import Reply, Request
from cometmq.remoting.command import CREDENTIALS, Command, without_credentials
from cometmq.tests.auth.comparison import Peer, settled, world
from cometmq.tests.auth.test_owners import ask
from cometmq.tests.broker.classic.test_classic_access import signed
from cometmq.tests.broker.classic_wire import heartbeat, message
from cometmq.tests.fuzz.costly import Costs

#: What the tests below make the broker send.
_SENT = {
    Request.GET_CONSUMER_RUNNING_INFO,
    Request.CONSUME_MESSAGE_DIRECTLY,
    Request.NOTIFY_CONSUMER_IDS_CHANGED,
    Request.RESET_CONSUMER_CLIENT_OFFSET,
    Request.PUSH_REPLY_MESSAGE_TO_CLIENT,
    Request.CHECK_TRANSACTION_STATE,
}


def _named(client_id: str, offset_id: str) -> Any:
    """Return the change of a request that names a connected client and a message."""

    def change(command: Command) -> None:
        properties = f"REPLY_TO_CLIENT\x01{client_id}\x02CORRELATION_ID\x011\x02UNIQ_KEY\x01r\x02"
        command.fields.update(
            {"clientId": client_id, "clientID": client_id, "msgId": offset_id},
            properties=properties,
            i=properties,
            SecurityToken="token",
        )
        if command.code == Admin.INVOKE_BROKER_TO_RESET_OFFSET:
            command.fields.update(offset="-1", queueId="-1")

    return change


async def test_no_client_gets_the_credentials_of_a_request(tmp_path: Path) -> None:
    async with world(tmp_path) as made:
        costs = Costs(made, thorough=False)
        handlers, victim = made.handlers, Peer()
        beat = Command(Request.HEART_BEAT, {}, heartbeat("victim", "shop", orders="*"))
        beat.body = beat.body[:-1] + b',"producerDataSet":[{"groupName":"producers"}]}'
        sender: Any = Peer()
        sent = handlers[Request.SEND_MESSAGE_V2](signed(message(b="orders"), "admin"), sender)
        offset_id = (await settled(sent)).fields["msgId"]
        for code in costs.codes:
            costs.restore()
            heard: Any = victim
            answer = handlers[Request.HEART_BEAT](
                signed(Command(34, {}, beat.body), "admin"), heard
            )
            assert answer.code == Reply.SUCCESS, answer.remark
            _, serve = costs.frame(code, "admin", _named("victim", offset_id))
            await serve()
        await ask(made.live)
        codes = {pushed.code for pushed in victim.sent}
        assert codes >= _SENT, _SENT - codes
        for pushed in victim.sent:
            assert CREDENTIALS.isdisjoint(pushed.fields), pushed


def test_a_command_without_credentials_keeps_its_other_fields() -> None:
    command = Command(1, {"topic": "t", "AccessKey": "a", "Signature": "s", "SecurityToken": "t"})
    assert without_credentials(command).fields == {"topic": "t"}
    assert without_credentials(Command(1, {"topic": "t"})).fields == {"topic": "t"}
