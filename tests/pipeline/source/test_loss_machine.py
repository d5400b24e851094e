"""Sends, retention, backups, restores, crashes, failovers and deleted topics in any order, under
both sources and both values of `failOnDataLoss`: every message that the query could know is read
once, or a report covers it.
"""

from __future__ import annotations

import logging
import shutil
import tempfile
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule
from pyspark.sql.streaming.datasource import ReadMaxRows

from cometmq.pipeline.errors import DataLossError
from cometmq.pipeline.source.stream import LogStreamReader
from cometmq.pipeline.source.stream_without_start import StreamReaderWithoutStart
from cometmq.tests.pipeline.source.lossy import HandlerChannel, LossyStore, Query

TOPICS = st.sampled_from(("t", "u"))
COUNTS = st.sampled_from((1, 5, 12, 30))
COPIES = st.sampled_from(("backup", "follower"))


class Reports(logging.Handler):
    """Collects the warnings about losses."""

    def __init__(self) -> None:
        super().__init__()
        self.texts: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        text = record.getMessage()
        if text.startswith("pipeline.data_loss"):
            self.texts.append(text)


class Losses(RuleBasedStateMachine):
    """A store and one query of it."""

    def __init__(self) -> None:
        super().__init__()
        self.folder = Path(tempfile.mkdtemp(prefix="losses-"))
        self.world = LossyStore(self.folder / "store")
        self.patch = pytest.MonkeyPatch()
        self.patch.setattr(HandlerChannel, "world", self.world, raising=False)
        self.patch.setattr("cometmq.pipeline.source.wire.Channel", HandlerChannel)
        self.reports = Reports()
        self.logger = logging.getLogger("cometmq.pipeline.source")
        self.logger.addHandler(self.reports)
        self.unknown: set[int] = set()  # lost before the query could know of them
        self.restarted_at: dict[str, int] = {}  # the number of plans, by topic
        self.gone: set[int] = set()  # by restores since the query planned its last batch
        self.replaced_at = 0  # the number of plans then
        self.returned: set[int] = set()  # by a restore after the query had gone on without them

    @initialize(
        source=st.sampled_from(("path", "endpoints")),
        strict=st.booleans(),
        before=TOPICS,
        form=st.sampled_from((LogStreamReader, StreamReaderWithoutStart)),
    )
    def begin(self, source: str, strict: bool, before: str, form: type[LogStreamReader]) -> None:
        self.strict = {"failOnDataLoss": str(strict).lower()}
        self.query = Query(self.world, source, self.strict, form=form)
        self.world.send(before, 3)
        self.world.back_up("backup")
        self.world.back_up("follower")
        self.query.start()
        self.query.reports = self.reports.texts

    @rule(topic=TOPICS, count=COUNTS)
    def send(self, topic: str, count: int) -> None:
        self.world.send(topic, count)

    @rule(topic=TOPICS, count=COUNTS, segments=st.integers(1, 9))
    def expire(self, topic: str, count: int, segments: int) -> None:
        """Retention is faster than the query."""
        self.world.send(topic, count)
        self._expire(segments)

    @rule(topic=TOPICS, segments=st.integers(1, 9))
    def expire_before_it_is_read(self, topic: str, segments: int) -> None:
        """Retention deletes what a batch was planned with."""
        self.world.send(topic, 12)
        self._past_losses(lambda: self.query.batch(between=lambda: self._expire(segments)))

    @rule(name=COPIES)
    def copy(self, name: str) -> None:
        self.world.back_up(name)

    @rule(name=COPIES, is_read=st.booleans(), topic=TOPICS, count=COUNTS)
    def restore(self, name: str, is_read: bool, topic: str, count: int) -> None:
        """A backup is restored, or a follower that is behind takes over; then it gets messages."""
        if is_read:
            self._past_losses(self.query.drain)
        self._replace(name)
        self.world.send(topic, count)

    @rule(torn=st.booleans())
    def crash(self, torn: bool) -> None:
        """The broker is killed; a power loss takes the last message too."""
        self.world.back_up("crashed")
        if torn:
            self.world.tear("crashed")
        self._replace("crashed")

    @rule(topic=TOPICS)
    def delete_topic(self, topic: str) -> None:
        """A topic is deleted and created again. A query that did not see it before does not miss
        it."""
        self.unknown |= self.world.hide(topic) - self.query.known

    @rule(topic=TOPICS, count=COUNTS)
    def create_topic_after_its_queues_were_removed(self, topic: str, count: int) -> None:
        """Its offsets begin at 0 again. What it had is deleted on purpose, and no file of it is
        left: a query that was at 0 sees only the new messages."""
        self.world.send("u" if topic == "t" else "t", 12)
        self._expire(9)
        self.unknown |= self.world.remove_expired(topic)
        self.restarted_at[topic] = self.query.plans
        self.world.send(topic, count)

    @rule(in_a_batch=st.booleans())
    def kill_driver(self, in_a_batch: bool) -> None:
        if in_a_batch:
            self._past_losses(self.query.plan)
        self.query.kill()

    @rule(rows=COUNTS)
    def batch(self, rows: int) -> None:
        self._past_losses(lambda: self.query.batch(ReadMaxRows(rows)))

    def teardown(self) -> None:
        try:
            self._past_losses(self.query.drain)
            twice = {one for one, count in Counter(self.query.rows).items() if count > 1}
            assert twice <= self.returned
            read = set(self.query.rows) | self.unknown
            silent = [one for one in self.world.sent if one.number not in read]
            silent = [one for one in silent if not self.query.is_reported(one)]
            assert not silent, (silent, self.reports.texts, self.query.checkpoint)
        finally:
            self.logger.removeHandler(self.reports)
            self.query.kill()
            self.patch.undo()
            self.world.close()
            shutil.rmtree(self.folder)

    def _past_losses(self, step: object) -> None:
        """Run a step; after an error, run it again with failOnDataLoss=false."""
        assert callable(step)
        try:
            step()
        except DataLossError as error:
            assert self.strict["failOnDataLoss"] == "true"
            assert "Set failOnDataLoss=false" in str(error)
            self.reports.texts.append(str(error))
            self.query.restart(failOnDataLoss="false")
            step()
            self.query.restart(**self.strict)

    def _expire(self, segments: int) -> None:
        """Expire segments. If the mark goes too before the query could see that the log was
        replaced or a topic began at 0 again, that looks like a loss of the first messages alone."""
        self.world.expire(segments)
        start, plans = self.world.first_position(), self.query.plans
        known = self.query.pending or self.query.checkpoint
        assert known is not None
        if known["$log"]["broker-a"][0] < start:
            is_new = plans == self.replaced_at
            self.unknown |= self.gone if is_new else set()
            self.unknown |= {
                one.number
                for one in self.world.there
                if one.position < start
                and one.number not in self.query.known
                and (is_new or self.restarted_at.get(one.topic) == plans)
            }

    def _replace(self, name: str) -> None:
        before = {one.number for one in self.world.there}
        readable = self.world.readable()
        self.world.restore(name)
        now = {one.number for one in self.world.there}
        self.unknown |= before - now - self.query.known
        self.returned |= self.world.readable() - readable
        if before - now:
            if self.query.plans != self.replaced_at:
                self.gone.clear()
            self.gone |= before - now
            self.replaced_at = self.query.plans


TestLosses = Losses.TestCase
TestLosses.settings = settings(
    max_examples=60,
    stateful_step_count=12,
    deadline=None,
    derandomize=True,  # always the same examples; TEST_EXAMPLES=4 and more explore
    phases=(Phase.generate,),  # to shrink an example of stores takes minutes
)
