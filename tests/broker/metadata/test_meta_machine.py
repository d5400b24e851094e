"""Random topics and groups with messages and restarts in between, against dictionaries.

After every step the tables equal the model's, and the readable part of a topic starts with the
first message stored since the topic was created.
"""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from cometmq.broker.metadata.log import MetaLog
from cometmq.broker.metadata.tables import Group, Metadata, Topic
from cometmq.front.clock import Clock
from cometmq.store.config.store_config import StoreConfig
from cometmq.store.format.record import Message
from cometmq.store.format.results import PutStatus
from cometmq.store.message_store import MessageStore
from cometmq.tests.store.heard import Heard

NAMES = st.sampled_from(["a", "b", "c"])
HOST = b"\x7f\x00\x00\x01\x00\x00\x1f\x91"


class Tables(RuleBasedStateMachine):
    """One store, its metadata log, and the expected tables."""

    def __init__(self) -> None:
        super().__init__()
        self._folder = Path(tempfile.mkdtemp(prefix="cometmq-"))
        self._life = 0
        self._now_ms = 1_795_000_000_000
        self.topics: dict[str, int] = {}
        self.groups: dict[str, int] = {}
        #: Messages ever stored under a name.
        self.stored: dict[str, int] = {}
        #: The first of them that belongs to the current topic.
        self.first: dict[str, int] = {}
        self._open()

    def _wall_ms(self) -> int:
        self._now_ms += 1
        return self._now_ms

    def _open(self) -> None:
        config = StoreConfig(
            store_path_root_dir=str(self._folder / str(self._life)),
            mapped_file_size_commit_log=8 << 10,
        )
        heard = Heard()
        self.store = MessageStore(config, self._wall_ms, events=heard)
        self.store.open()
        self.metadata = Metadata(True, 1_000, 1_000, Clock().steady_ns)
        self.log = MetaLog(self.metadata, self.store, self._wall_ms)
        self.log.load()
        heard.heads = self.log.snapshot
        self.store.start()

    def _dispatch(self) -> None:
        while arrivals := self.store.writer.dispatch(self.store.log_end):
            for arrival in arrivals:
                if arrival.topic == "rmq_sys_COMETMQ_META":
                    self.log.apply(arrival)

    @rule(name=NAMES, queues=st.integers(1, 4))
    def make_topic(self, name: str, queues: int) -> None:
        if name not in self.topics:
            self.first[name] = self.stored.get(name, 0)
        self.topics[name] = queues
        known = self.metadata.topic(name)
        first_offsets = dict(known.first_offsets) if known else {}
        self.log.write_topic(Topic(name, queues, queues, first_offsets=first_offsets))

    @rule(name=NAMES, attempts=st.integers(1, 9))
    def make_group(self, name: str, attempts: int) -> None:
        self.groups[name] = attempts
        self.log.write_group(Group(name, max_attempts=attempts))

    @precondition(lambda self: self.topics)
    @rule(data=st.data(), size=st.integers(1, 1_500))
    def send(self, data: st.DataObject, size: int) -> None:
        name = data.draw(st.sampled_from(sorted(self.topics)))
        message = Message(name, 0, b"x" * size, b"", born_host=HOST, store_host=HOST)
        message.born_timestamp_ms = self._now_ms
        (result,) = self.store.writer.append_many([message])
        assert result.status is PutStatus.PUT_OK
        assert result.queue_offset == self.stored.get(name, 0)
        self.stored[name] = result.queue_offset + 1

    @precondition(lambda self: self.topics)
    @rule(data=st.data())
    def delete_topic(self, data: st.DataObject) -> None:
        name = data.draw(st.sampled_from(sorted(self.topics)))
        del self.topics[name]
        self.log.delete_topic(name)

    @precondition(lambda self: self.groups)
    @rule(data=st.data(), keep=st.booleans())
    def delete_group(self, data: st.DataObject, keep: bool) -> None:
        name = data.draw(st.sampled_from(sorted(self.groups)))
        del self.groups[name]
        self.log.delete_group(name, keep)

    @rule()
    def dispatch(self) -> None:
        self._dispatch()

    @rule(clean=st.booleans())
    def restart(self, clean: bool) -> None:
        if clean:
            self.store.close()
        else:  # a copy of the directory of a running store equals the state after kill -9
            source = self._folder / str(self._life)
            self._life += 1
            shutil.copytree(source, self._folder / str(self._life))
            self.store.close()
        self._open()

    @invariant()
    def the_tables_are_the_models(self) -> None:
        queues = {name: topic.read_queues for name, topic in self.metadata.topics.items()}
        assert queues == self.topics
        attempts = {name: group.max_attempts for name, group in self.metadata.groups.items()}
        assert attempts == self.groups

    @invariant()
    def readers_see_the_topic_that_there_is(self) -> None:
        if self.store.dispatched_offset < self.store.log_end:
            return  # readers see less
        for name in self.topics:
            assert self.store.max_offset(name, 0) == self.stored.get(name, 0)
            assert self.store.min_offset(name, 0) == self.first[name]

    def teardown(self) -> None:
        self.store.close()
        shutil.rmtree(self._folder)


Tables.TestCase.settings = settings(max_examples=10, stateful_step_count=25, deadline=None)
test_tables = Tables.TestCase
