"""Signatures, rights and quotas of classic clients."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import hmac
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from cometmq.auth.model import Policy, ResourcePattern, User, parse_actions
from cometmq.auth.quota import Quota
from cometmq.broker.metadata.tables import Group, Topic
from cometmq.proto import paths, v2
from cometmq.remoting.admin_codes import Admin
from cometmq.remoting.codes import Reply, Request
from cometmq.remoting.command import Command, reply
from cometmq.tests.broker.access.test_quotas import signed as grpc_signed
from cometmq.tests.broker.classic.test_classic_pop import named, popping
from cometmq.tests.broker.classic_wire import (
    GROUP,
    TOPIC,
    heartbeat,
    message,
    port_of,
    pulling,
    records,
)
from cometmq.tests.broker.live import Live, running, settings, until
from cometmq.tests.remoting.client import RemotingClient

SECRET = "secret-key"
UNSIGNED_BEFORE = 397


def signed(command: Command, user: str, secret: str = SECRET) -> Command:
    """Sign a command as the clients' hook does."""
    command.fields["AccessKey"] = user
    values = "".join(command.fields[name] for name in sorted(command.fields))
    digest = hmac.digest(secret.encode(), values.encode() + command.body, hashlib.sha1)
    command.fields["Signature"] = base64.b64encode(digest).decode()
    return command


def half() -> Command:
    return message(properties="TRAN_MSG\x01true\x02PGROUP\x01producers\x02UNIQ_KEY\x01h\x02", f=4)


def request(code: int, body: bytes = b"", /, **fields: object) -> Command:
    return Command(code, {name: str(value) for name, value in fields.items()}, body)


@asynccontextmanager
async def guarded(tmp_path: Path, **more: Any) -> AsyncIterator[tuple[Live, RemotingClient]]:
    """Serve the topics `orders` and `others`; the users p and c may send to and consume orders."""
    chosen = settings(
        tmp_path,
        remoting_listen_port=-1,
        authentication_enabled=True,
        authorization_enabled=True,
        **more,
    )
    async with running(chosen) as live:
        for name in (TOPIC, "others"):
            live.node.meta_log.write_topic(Topic(name, 2, 2))
        users = {
            "admin": (),
            "p": ((f"Topic:{TOPIC}", "Pub"),),
            "c": ((f"Topic:{TOPIC}", "Sub"), (f"Group:{GROUP}", "Sub,Get")),
        }
        for name, policies in users.items():
            made = tuple(
                Policy(ResourcePattern.parse(resource), parse_actions(actions), True, ())
                for resource, actions in policies
            )
            sealed = live.node.keys.key.seal(name, SECRET)
            live.node.metadata.put_user(User(name, sealed, policies=made, is_super=name == "admin"))
        async with RemotingClient(port_of(live)) as client:
            yield live, client


def put_user(live: Live, name: str, *rights: tuple[str, str]) -> None:
    """Add a user with a policy for each resource and its actions."""
    policies = tuple(
        Policy(ResourcePattern.parse(resource), parse_actions(actions), True, ())
        for resource, actions in rights
    )
    sealed = live.node.keys.key.seal(name, SECRET)
    live.node.metadata.put_user(User(name, sealed, policies=policies))


async def test_requests_need_the_signature_of_a_user(tmp_path: Path) -> None:
    async with guarded(tmp_path) as (live, client):
        refused = (
            ("no AccessKey", message()),
            ("check signature failed", signed(message(), "nobody")),
            ("check signature failed", signed(message(), "p", "wrong")),
        )
        for words, command in refused:
            answer = await client.post(command)
            assert (answer.code, words in (answer.remark or "")) == (Reply.NO_PERMISSION, True)
        changed = signed(message(), "p")
        changed.body = b"other"
        assert (await client.post(changed)).code == Reply.NO_PERMISSION
        changed = signed(message(), "p")
        changed.fields["Signature"] = "!"
        assert (await client.post(changed)).code == Reply.NO_PERMISSION
        assert (await client.post(signed(message(), "p"))).code == Reply.SUCCESS
        assert live.node.runtime.counters.refused_calls["signature"] == 4


async def test_a_denial_does_not_tell_whose_message_lies_at_an_offset(tmp_path: Path) -> None:
    async with guarded(tmp_path) as (live, client):
        foreign = (await client.post(signed(message(b="others", e=0), "admin"))).fields["msgId"]
        back = {"group": GROUP, "delayLevel": 0, "originTopic": TOPIC}
        answers = [
            await client.post(signed(request(code, offset=at, **fields), "c"))
            for at in (int(foreign[16:], 16), 1, 1 << 40)
            for code, fields in ((33, {}), (36, back))
        ]
        assert {answer.code for answer in answers} == {Reply.NO_PERMISSION}
        assert len({answer.remark for answer in answers}) == 1
        # A user with a right on every topic, or of type Super, is told.
        put_user(live, "every", ("Topic:*", "Sub"))
        for user in ("every", "admin"):
            answer = await client.post(signed(request(33, offset=1), user))
            assert answer.code == Reply.SYSTEM_ERROR


async def test_users_have_the_rights_of_their_policies(tmp_path: Path) -> None:
    retry = f"%RETRY%{GROUP}"
    async with guarded(tmp_path) as (_, client):

        async def code(user: str, command: Command) -> int:
            return (await client.post(signed(command, user))).code

        allowed = Reply.SUCCESS
        assert await code("p", message()) == allowed
        assert await code("c", message()) == Reply.NO_PERMISSION
        assert await code("p", message(b="others")) == Reply.NO_PERMISSION
        assert await code("admin", message(b="others", e=0)) == allowed
        beat = request(Request.HEART_BEAT, heartbeat("c1", GROUP, 1, **{TOPIC: "*", retry: "*"}))
        assert await code("p", replace(beat, fields={})) == Reply.NO_PERMISSION
        assert await code("c", replace(beat, fields={})) == allowed
        other = request(Request.HEART_BEAT, heartbeat(group=GROUP, others="*"))
        assert await code("c", other) == Reply.NO_PERMISSION
        pull = signed(pulling(), "c")
        (record,) = records((await client.post(pull)).body)
        assert await code("p", pulling()) == Reply.NO_PERMISSION
        assert await code("c", pulling(topic="others")) == Reply.NO_PERMISSION
        assert await code("c", pulling(consumerGroup="another")) == Reply.NO_PERMISSION
        # A consumer may send to the retry topic of its group.
        assert await code("c", message(b=retry, e=0)) == allowed
        assert await code("p", message(b=retry, e=0)) == Reply.NO_PERMISSION
        back = {"group": GROUP, "delayLevel": 0, "originTopic": TOPIC}
        at = record.physical_offset
        assert await code("c", request(36, offset=at, **back)) == allowed
        foreign = (await client.post(signed(message(b="others", e=0), "admin"))).fields["msgId"]
        at = int(foreign[16:], 16)
        assert await code("c", request(36, offset=at, **back)) == Reply.NO_PERMISSION
        assert await code("c", request(33, offset=at)) == Reply.NO_PERMISSION
        assert await code("c", request(33, offset=record.physical_offset)) == allowed
        asked = {"consumerGroup": GROUP, "clientId": "gone"}
        assert await code("c", request(307, **asked)) == Reply.SYSTEM_ERROR
        assert await code("p", request(307, **asked)) == Reply.NO_PERMISSION
        # What the table of rights does not name needs a user of type Super.
        assert await code("c", request(309, **asked)) == Reply.NO_PERMISSION


async def test_groups_that_share_the_name_of_a_retry_topic_get_their_own_messages(
    tmp_path: Path,
) -> None:
    """Of group g and topic a_t, of g_a and t, and of consumers of a group with the whole name."""
    shared = "%RETRY%g_a_t"
    pairs = {"g": "a_t", "g_a": "t"}
    async with guarded(tmp_path) as (live, client):
        for topic in pairs.values():
            live.node.meta_log.write_topic(Topic(topic, 1, 1))
        for group, topic in {**pairs, "g_a_t": "others"}.items():
            live.node.meta_log.write_group(Group(group))
            put_user(live, group, (f"Group:{group}", "Sub"), (f"Topic:{topic}", "Sub"))
            sent = message(topic.encode(), f"UNIQ_KEY\x01{topic}\x02", b=topic, e=0)
            assert (await client.post(signed(sent, "admin"))).code == Reply.SUCCESS

        async def read(group: str, topic: str) -> list[bytes]:
            fields = {"consumerGroup": group, "topic": topic, "invisibleTime": 1_000}
            popped = await client.post(signed(popping(pollTime=0, **fields), group))
            return [record.body for record in records(popped.body)]

        def held() -> int:
            live.node.pump.catch_up()
            return live.node.store.max_offset(shared, 0)

        for group, topic in pairs.items():  # popped and not acknowledged
            assert await read(group, topic) == [topic.encode()]
        at = live.node.store.get("others", 0, 0, 1).records[0].physical_offset
        back = request(36, group="g_a_t", delayLevel=1, originTopic="others", offset=at)
        own = message(b"own", "UNIQ_KEY\x01own\x02", b=shared, e=0)
        for command in (back, own):
            assert (await client.post(signed(command, "g_a_t"))).code == Reply.SUCCESS
        await until(lambda: held() == 4)
        for group, topic in pairs.items():
            assert await read(group, topic) == [topic.encode()]
        pull = pulling(consumerGroup="g_a_t", topic=shared, queueId=0)
        found = records((await client.post(signed(pull, "g_a_t"))).body)
        assert {record.body for record in found} == {b"others", b"own"}


async def test_the_outcome_of_a_transaction_needs_the_right_on_its_topic(tmp_path: Path) -> None:
    async with guarded(tmp_path) as (_, client):
        sent = await client.post(signed(half(), "p"))
        fields = {
            **{"producerGroup": "producers", "tranStateTableOffset": sent.fields["queueOffset"]},
            **{"commitLogOffset": 0, "commitOrRollback": 8, "msgId": "h", "topic": "others"},
        }
        for user, code in (("c", Reply.NO_PERMISSION), ("p", Reply.SUCCESS)):
            answer = await client.post(signed(request(37, **fields), user))
            assert answer.code == code


async def test_an_absent_transaction_and_a_foreign_one_are_the_same_to_a_user(
    tmp_path: Path,
) -> None:
    async with guarded(tmp_path) as (live, client):
        sent = await client.post(signed(half(), "p"))
        put_user(live, "other", ("Topic:others", "Pub"))
        offset = sent.fields["queueOffset"]
        ids = ((offset, "h"), (-1, "h"), (offset, "x"), (1 << 40, "h"), (-1, "x"))
        fields = {"producerGroup": "producers", "commitLogOffset": 0, "commitOrRollback": 8}
        answers = [
            await client.post(
                signed(request(37, **fields, tranStateTableOffset=at, msgId=key), "other")
            )
            for at, key in ids
        ]
        assert {answer.code for answer in answers} == {Reply.NO_PERMISSION}
        assert len({answer.remark for answer in answers}) == 1
        broker = live.node.runtime.config.broker_name
        answers_v2 = []
        async with grpc_signed(live, "other", SECRET) as wire:
            for ident in ("h", "x", f"{broker}:{offset}:h", f"{broker}:{offset}:x"):
                end = v2.EndTransactionRequest(transaction_id=ident, resolution=v2.COMMIT)
                end.topic.name = "others"
                answers_v2.append(
                    (await wire.call(paths.END_TRANSACTION, end, v2.EndTransactionResponse)).status
                )
        assert {answer.code for answer in answers_v2} == {v2.INVALID_TRANSACTION_ID}
        assert len({answer.message for answer in answers_v2}) == 1


async def test_a_field_that_old_clients_add_after_the_signature_is_not_part_of_it(
    tmp_path: Path,
) -> None:
    asked = {"topic": TOPIC, "key": "k", "maxNum": 1, "beginTimestamp": 0, "endTimestamp": 1}
    async with guarded(tmp_path) as (_, client):
        for version, code in ((UNSIGNED_BEFORE, Reply.QUERY_NOT_FOUND), (513, 16)):
            command = signed(request(Request.QUERY_MESSAGE, **asked), "c")
            command.fields["_UNIQUE_KEY_QUERY"] = "true"
            command.version = version
            assert (await client.post(command)).code == code


async def test_a_user_pops_changes_and_acknowledges(tmp_path: Path) -> None:
    async with guarded(tmp_path) as (_, client):
        for _ in range(2):
            await client.post(signed(message(), "p"))
        for user in ("c", "admin"):
            answer = await client.post(signed(popping(maxMsgNums=1), user))
            (found,) = records(answer.body)
            changed = named(found, invisibleTime=20_000)
            handle = request(Request.CHANGE_MESSAGE_INVISIBLETIME, **changed)
            assert (await client.post(signed(handle, user))).code == Reply.SUCCESS
        assert (await client.post(signed(popping(), "p"))).code == Reply.NO_PERMISSION


async def test_quotas_of_users_hold_for_classic_sends(tmp_path: Path) -> None:
    async with guarded(tmp_path) as (live, client):
        live.node.metadata.put_quota(Quota("User:p", messages=1))
        commands = [signed(message(), "p") for _ in range(100)]
        answers = await asyncio.gather(*map(client.post, commands))
        refused = [each for each in answers if each.code == Reply.SYSTEM_BUSY]
        assert 0 < len(refused) < len(answers)
        assert refused[0].remark == "[QUOTA] User:p is limited to 1 messages a second"


async def test_a_request_is_not_parsed_before_its_signature_is_checked(tmp_path: Path) -> None:
    async with guarded(tmp_path) as (_, client):
        for code in (Request.HEART_BEAT, Request.LOCK_BATCH_MQ, Request.QUERY_ASSIGNMENT):
            answer = await client.post(request(code, b"{"))
            assert "no AccessKey" in (answer.remark or "")
            answer = await client.post(signed(request(code, b"{"), "c", "wrong"))
            assert "check signature failed" in (answer.remark or "")
            answer = await client.post(signed(request(code, b"{"), "c"))
            assert "the body cannot be read" in (answer.remark or "")


async def test_every_request_without_a_signature_is_refused(tmp_path: Path) -> None:
    async with guarded(tmp_path) as (_, client):
        answers = {
            code: (await client.post(request(code))).code for code in {*Request, *Admin, 0, 999}
        }
    refused = (Reply.NO_PERMISSION, Reply.REQUEST_CODE_NOT_SUPPORTED)
    assert {code: found for code, found in answers.items() if found not in refused} == {}


async def test_changes_of_tools_have_lines_in_the_audit_log(tmp_path: Path) -> None:
    file = tmp_path / "audit.log"
    topic = {"topic": "new", "readQueueNums": 1, "writeQueueNums": 1, "perm": 6}
    create = Admin.UPDATE_AND_CREATE_TOPIC
    async with guarded(tmp_path, audit_log_file=str(file)) as (_, client):
        await client.post(request(create, **topic))
        await client.post(signed(request(create, **topic), "p"))
        await client.post(signed(request(create, **topic, topicSysFlag=0), "admin"))
        await client.post(signed(request(Admin.GET_TOPIC_CONFIG, topic="new"), "admin"))
        for secret in ("secret-of-ann", "secret-of-ann", "another-one"):
            user = f'{{"username":"ann","password":"{secret}"}}'.encode()
            await client.post(
                signed(request(Admin.AUTH_CREATE_USER, user, username="ann"), "admin")
            )
        mode = b'{"consumerGroup":"g","topic":"new","mode":"POP"}'
        await client.post(signed(request(Request.SET_MESSAGE_REQUEST_MODE, mode), "p"))
    text = file.read_text()
    assert "secret-of-ann" not in text
    lines = [json.loads(line) for line in text.splitlines()]
    assert [(row["user"], row["call"], row["target"], row["code"]) for row in lines] == [
        ("", "UPDATE_AND_CREATE_TOPIC", "new", Reply.NO_PERMISSION),
        ("p", "UPDATE_AND_CREATE_TOPIC", "new", Reply.NO_PERMISSION),
        ("admin", "UPDATE_AND_CREATE_TOPIC", "new", v2.OK),
        ("admin", "AUTH_CREATE_USER", "ann", v2.OK),
        ("admin", "AUTH_CREATE_USER", "ann", v2.OK),  # the same again
        ("admin", "AUTH_CREATE_USER", "ann", Reply.INVALID_PARAMETER),
        ("p", "SET_MESSAGE_REQUEST_MODE", "", Reply.NO_PERMISSION),
    ]
    assert all(row["from"].startswith("127.0.0.1:") for row in lines)


async def test_a_forwarded_request_has_no_credentials_of_its_sender(tmp_path: Path) -> None:
    async with guarded(tmp_path) as (live, consumer):
        seen: list[Command] = []

        def answer(command: Command) -> Command | None:
            if command.is_oneway:
                return None
            seen.append(command)
            return reply(Reply.SUCCESS)

        consumer.on_request = answer
        beat = signed(request(Request.HEART_BEAT, heartbeat("c1", GROUP)), "c")
        assert (await consumer.post(beat)).code == Reply.SUCCESS
        sent = await consumer.post(signed(message(), "p"))
        async with RemotingClient(port_of(live)) as tool:
            asked = {"consumerGroup": GROUP, "clientId": "c1", "SecurityToken": "t"}
            for code in (Request.GET_CONSUMER_RUNNING_INFO, Request.CONSUME_MESSAGE_DIRECTLY):
                command = request(code, **asked, msgId=sent.fields["msgId"])
                assert (await tool.post(signed(command, "admin"))).code == Reply.SUCCESS
        assert [each.code for each in seen] == [307, 309]
        for each in seen:
            assert each.fields["clientId"] == "c1"
            assert not each.fields.keys() & {"AccessKey", "Signature", "SecurityToken"}
