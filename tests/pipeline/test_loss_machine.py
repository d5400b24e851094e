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
from cometmq.tests.pipeline.lossy import HandlerChannel, LossyStore, Query

TOPICS = st.sampled_from(("t", "u"))
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
        self.returned: set[int] = set()  # by a restore after the query had gone on without them

    @initialize(source=st.sampled_from(("path", "endpoints")), strict=st.booleans(), before=TOPICS)
    def begin(self, source: str, strict: bool, before: str) -> None:
        self.strict = {"failOnDataLoss": str(strict).lower()}
        self.query = Query(self.world, source, self.strict)
        self.world.send(before, 3)
        self.world.back_up("backup")
        self.world.back_up("follower")
        self.query.start()
        self.query.reports = self.reports.texts

    @rule(topic=TOPICS, count=st.integers(1, 30))
    def send(self, topic: str, count: int) -> None:
        self.world.send(topic, count)

    @rule(segments=st.integers(1, 3))
    def expire(self, segments: int) -> None:
        self.world.expire(segments)

    @rule(name=COPIES)
    def copy(self, name: str) -> None:
        self.world.back_up(name)

    @rule(name=COPIES)
    def restore(self, name: str) -> None:
        """A backup is restored, or a follower that is behind takes over."""
        self._replace(name)

    @rule(torn=st.booleans())
    def crash(self, torn: bool) -> None:
        """The broker is killed; a power loss takes the last message too."""
        self.world.back_up("crashed")
        if torn:
            self.world.tear("crashed")
        self._replace("crashed")

    @rule(topic=TOPICS)
    def delete_topic(self, topic: str) -> None:
        """A query that did not see the topic before it was deleted does not miss it."""
        self.unknown |= self.world.hide(topic) - self.query.known

    @rule(topic=TOPICS)
    def remove_expired(self, topic: str) -> None:
        self.unknown |= self.world.remove_expired(topic) - self.query.known

    @rule()
    def kill_driver(self) -> None:
        self.query.kill()

    @rule()
    def kill_driver_in_a_batch(self) -> None:
        self._past_losses(self.query.plan)
        self.query.kill()

    @rule(rows=st.integers(1, 40))
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
        """Run a step. After an error run it with failOnDataLoss=false, as the error says."""
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

    def _replace(self, name: str) -> None:
        before = {one.number for one in self.world.there}
        self.world.restore(name)
        now = {one.number for one in self.world.there}
        self.unknown |= before - now - self.query.known
        self.returned |= now - before


TestLosses = Losses.TestCase
TestLosses.settings = settings(
    max_examples=60,
    stateful_step_count=12,
    deadline=None,
    phases=(Phase.generate,),
    report_multiple_bugs=False,
)
