"""Metadata log: topics, groups, users, quotas in the commit log, their only durable form.

Every change is an ordinary record of topic `rmq_sys_COMETMQ_META`, queue 0 (tag META), and every
segment begins with a snapshot (tag SNAPSHOT), so that the state can be rebuilt from the start of
any segment (docs/formats/ha.md, rule R11). Promises: a change is in the log before it is in the
tables; the state after a start is the newest complete snapshot and every later change; a follower
applies arriving records and never writes. Because the log is ordered, a message of a new topic is
durable only if the topic is.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING

from ...proto import v1, v2
from ...proto.errors import WireError
from ...store.format.errors import RecordFormatError, StoreError
from ...store.format.record import (
    Message,
    Record,
    decode,
    encode_properties,
)
from ...store.format.record_layout import (
    BLANK,
    HOST_V4_BYTES,
    MAGIC_BLANK,
)
from ...store.format.results import PutStatus
from ...store.format.topic_names import META_TOPIC
from .codec import (
    PART_BYTES,
    Assembly,
    group_message,
    group_of,
    quota_message,
    quota_of,
    snapshot_parts,
    topic_message,
    topic_of,
    user_message,
    user_of,
)
from .tables import Group, Metadata, Topic, is_system_topic

if TYPE_CHECKING:
    from ...auth.model import User
    from ...auth.quota import Quota
    from ...store.format.results import Arrival, StoredRecord
    from ...store.message_store import MessageStore

logger = logging.getLogger(__name__)

META_QUEUE = 0
_TAG = "TAGS"
_TAG_META = "META"
_TAG_SNAPSHOT = "SNAPSHOT"
_TAG_EPOCH = "EPOCH_START"
# Records per read during the search for the newest snapshot, from the end backwards.
_READ_RECORDS = 64
_READ_BYTES = 1 << 20
# Ids that queues of a deleted topic may have.
_QUEUE_IDS = range(1_024)


class MetaLog:
    """Writes changes (on the leader), applies records, and makes the snapshots of new segments."""

    def __init__(self, metadata: Metadata, store: MessageStore, wall_ms: Callable[[], int]) -> None:
        #: Version of the newest change in the tables.
        self.version = 0
        #: Records of the topic that could not be read at the start; the JSON files may have their
        #: entries.
        self.damaged = 0
        self._metadata = metadata
        self._store = store
        #: Whether every segment begins with a snapshot: on a leader.
        self.heads_segments = False
        self._host = bytes(HOST_V4_BYTES)
        self._topic_listeners: list[Callable[[str], None]] = []
        self._group_listeners: list[Callable[[str, bool], None]] = []
        self._wall_ms = wall_ms
        self._assembly = Assembly()
        segment = store.config.mapped_file_size_commit_log
        # In segments of a few KiB (tests) a part must leave space for other records.
        self._part_bytes = min(PART_BYTES, segment // 4)
        self._snapshot_limit = segment // 2

    def set_host(self, packed: bytes) -> None:
        """Set the born and store host of the records, once the port is known."""
        self._host = packed

    def watch_removals(
        self, topic_removed: Callable[[str], None], group_removed: Callable[[str, bool], None]
    ) -> None:
        """Call back for each removal, on every replica, in the order of the log.

        `group_removed` gets the name, and whether the group's offsets are kept.
        """
        self._topic_listeners.append(topic_removed)
        self._group_listeners.append(group_removed)

    # Writing: on the leader only.

    def write_topic(self, topic: Topic) -> int:
        """Append and apply the creation or change of a topic; return the log offset after it.

        A new topic begins after the messages of a deleted topic of the same name. Raises WireError.
        """
        known = self._metadata.topic(topic.name)
        if known is not None:
            topic.since = known.since
        elif not is_system_topic(topic.name):
            topic.first_offsets = self._ends(topic.name)
            topic.since = self._store.appended_end
        return self._write_topic(topic)

    def _write_topic(self, topic: Topic) -> int:
        end = self._write(v1.MetaChange(topic_upsert=topic_message(topic)))
        self._metadata.put_topic(topic)
        self._hide_old(topic)
        return end

    def write_group(self, group: Group) -> int:
        """Append and apply the creation or change of a group; return the log offset after it."""
        known = self._metadata.group(group.name)
        if known is None:
            group.since, group.since_ms = self._store.appended_end, self._wall_ms()
        else:
            group.since, group.since_ms = known.since, known.since_ms
        return self._write_group(group)

    def _write_group(self, group: Group) -> int:
        end = self._write(v1.MetaChange(group_upsert=group_message(group)))
        self._metadata.put_group(group)
        return end

    def delete_topic(self, name: str) -> int:
        """Append and apply the deletion of a topic; return the log offset after it."""
        end = self._write(v1.MetaChange(topic_delete=name))
        self._remove_topic(name, end)
        return end

    def delete_group(self, name: str, keep_offsets: bool, stays_deleted_ms: int = 0) -> int:
        """Append and apply the deletion of a group; return the log offset after it. Clients do not
        create the group again for `stays_deleted_ms`."""
        change = v1.MetaChange(
            group_delete=name, keep_offsets=keep_offsets, stays_deleted_ms=stays_deleted_ms
        )
        end = self._write(change)
        self._remove_group(name, keep_offsets)
        self._metadata.refuse_group(name, stays_deleted_ms)
        return end

    def write_user(self, user: User) -> int:
        """Append and apply the creation or change of a user; return the log offset after it."""
        end = self._write(v1.MetaChange(user_upsert=user_message(user, with_secret=True)))
        self._metadata.put_user(user)
        return end

    def delete_user(self, name: str) -> int:
        """Append and apply the deletion of a user; return the log offset after it."""
        end = self._write(v1.MetaChange(user_delete=name))
        self._metadata.remove_user(name)
        return end

    def write_quota(self, quota: Quota) -> int:
        """Append and apply the creation or change of a quota; return the log offset after it."""
        end = self._write(v1.MetaChange(quota_upsert=quota_message(quota)))
        self._metadata.put_quota(quota)
        return end

    def delete_quota(self, subject: str) -> int:
        """Append and apply the deletion of a quota; return the log offset after it."""
        end = self._write(v1.MetaChange(quota_delete=subject))
        self._metadata.remove_quota(subject)
        return end

    def write_drained(self, drained: bool) -> int:
        """Append and apply whether the broker group is drained; return the log offset after it."""
        end = self._write(v1.MetaChange(drained=drained))
        self._metadata.drained = drained
        return end

    def begin_epoch(self, start: v1.EpochStart) -> int:
        """Append the first record of an epoch; return the log offset after it. Raises WireError."""
        # The end of a segment may follow before the record (`ha/state/epoch_scan.py`).
        start.start = self._store.log_end
        return self._append(_TAG_EPOCH, start.SerializeToString())

    def catch_up(self) -> None:
        """Apply the records beyond the queues' end, before this replica writes the next change."""
        for record in self._undispatched():
            self._apply(record)

    def _remove_topic(self, name: str, offset: int) -> None:
        self._metadata.remove_topic(name)
        self._metadata.note_deletion(name, offset, self._store.log_start)
        for listener in self._topic_listeners:
            listener(name)

    def _remove_group(self, name: str, keep_offsets: bool) -> None:
        self._metadata.remove_group(name)
        for listener in self._group_listeners:
            listener(name, keep_offsets)

    def _ends(self, name: str) -> dict[int, int]:
        """Return the next offsets of the existing queues of a topic."""
        ends = self._store.writer.next_offsets(name, _QUEUE_IDS)
        return {queue_id: end for queue_id, end in ends.items() if end}

    def _hide_old(self, topic: Topic) -> None:
        """Hide the messages of a deleted topic of the same name from readers.

        Queues that are not dispatched so far yet are hidden again when the record is dispatched.
        """
        for queue_id, end in topic.first_offsets.items():
            self._store.queue_table.hide_below(topic.name, queue_id, end)

    def _write(self, change: v1.MetaChange) -> int:
        change.version = self.version + 1
        end = self._append(_TAG_META, change.SerializeToString())
        self.version = change.version
        return end

    def _append(self, tag: str, body: bytes) -> int:
        message = self._message(tag, body)
        try:
            (result,) = self._store.writer.append_many([message])
        except (StoreError, OSError) as error:
            raise WireError(
                v2.INTERNAL_SERVER_ERROR, f"the change was not stored: {error}"
            ) from error
        if result.status is not PutStatus.PUT_OK:
            reason = self._store.refusal or result.status.value
            raise WireError(v2.INTERNAL_SERVER_ERROR, f"the change was not stored: {reason}")
        return result.end

    def snapshot(self, _segment_offset: int = 0) -> list[Message]:
        """Return a snapshot: the first records of a new segment (`StoreEvents.segment_heads`)."""
        parts = snapshot_parts(
            self.version,
            self._metadata.topics.values(),
            self._metadata.groups.values(),
            self._metadata.users.values(),
            self._metadata.quotas.values(),
            deleted_groups=self._metadata.refused_groups(),
            deleted_topics=self._metadata.deleted_topics,
            drained=self._metadata.drained,
            part_bytes=self._part_bytes,
        )
        bodies = [part.SerializeToString() for part in parts]
        if sum(map(len, bodies)) > self._snapshot_limit:
            # Only with tiny segments; all changes are in the log anyway.
            logger.warning("meta.snapshot_skipped bytes=%d", sum(map(len, bodies)))
            return []
        return [self._message(_TAG_SNAPSHOT, body) for body in bodies]

    def _message(self, tag: str, body: bytes) -> Message:
        return Message(
            META_TOPIC,
            META_QUEUE,
            body,
            encode_properties({_TAG: tag}),
            born_timestamp_ms=self._wall_ms(),
            born_host=self._host,
            store_host=self._host,
        )

    # Reading.

    def load(self) -> None:
        """Read the state from the log; called once, before the tables are used."""
        for record in self._from_newest_snapshot():
            self._apply(record)
        for record in self._undispatched():
            self._apply(record)

    def merge(
        self,
        topics: Iterable[Topic],
        groups: Iterable[Group],
        write: bool,
        *,
        new_topics: bool = True,
        new_groups: bool = True,
    ) -> None:
        """Add topics and groups of the JSON files (Apache's directory) that the log does not hold.

        Without `new_topics` or `new_groups`, only add the fields that the log does not hold to
        known ones. `write` also appends the new ones to the log.
        """
        for topic in topics:
            known = self._metadata.topic(topic.name)
            if known is not None:
                known.extra = topic.extra
            elif not new_topics:
                continue
            elif write:
                self._write_topic(topic)
            else:
                self._metadata.put_topic(topic)
        for group in groups:
            known_group = self._metadata.group(group.name)
            if known_group is not None:
                known_group.extra = {**group.extra, **known_group.extra}
            elif not new_groups:
                continue
            elif write:
                self._write_group(group)
            else:
                self._metadata.put_group(group)

    def apply(self, arrival: Arrival) -> None:
        """Apply a dispatched record of the topic; no effect for this replica's own records.

        A record that was damaged since it was appended is skipped with a warning: the tables of the
        leader have its change, those of a follower have it again after the scrub and a restart.
        """
        offset = arrival.physical_offset
        try:
            record = decode(self._store.record_at(offset))
        except RecordFormatError as error:
            logger.warning("metadata.record_damaged offset=%d error=%s", offset, error)
            return
        self._apply(record)

    def _apply(self, record: Record) -> None:
        tag = record.properties_dict.get(_TAG)
        if tag == _TAG_META:
            self._apply_change(v1.MetaChange.FromString(record.body), record)
        elif tag == _TAG_SNAPSHOT:
            parts = self._assembly.add(v1.MetaSnapshot.FromString(record.body))
            if parts is not None:
                self._apply_snapshot(parts, record.store_timestamp_ms)

    def _apply_change(self, change: v1.MetaChange, record: Record) -> None:
        kind = change.WhichOneof("change")
        if change.version <= self.version:
            if kind == "topic_upsert" and change.topic_upsert.first_offsets:
                self._hide_old(topic_of(change.topic_upsert))
            return
        self.version = change.version
        if kind == "topic_upsert":
            topic = topic_of(change.topic_upsert)
            self._metadata.put_topic(topic)
            self._hide_old(topic)
        elif kind == "group_upsert":
            self._metadata.put_group(group_of(change.group_upsert))
        elif kind == "topic_delete":
            self._remove_topic(change.topic_delete, record.physical_offset + record.size)
        elif kind == "group_delete":
            self._remove_group(change.group_delete, change.keep_offsets)
            stays_ms = change.stays_deleted_ms
            self._refuse_group(change.group_delete, stays_ms, record.store_timestamp_ms)
        elif kind == "user_upsert":
            self._metadata.put_user(user_of(change.user_upsert))
        elif kind == "user_delete":
            self._metadata.remove_user(change.user_delete)
        elif kind == "quota_upsert":
            self._metadata.put_quota(quota_of(change.quota_upsert))
        elif kind == "quota_delete":
            self._metadata.remove_quota(change.quota_delete)
        elif kind == "drained":
            self._metadata.drained = change.drained

    def _refuse_group(self, name: str, stays_ms: int, stored_ms: int) -> None:
        """Keep a group deleted for the rest of the time that began at `stored_ms`."""
        passed_ms = max(0, self._wall_ms() - stored_ms)
        self._metadata.refuse_group(name, stays_ms - passed_ms)

    def _apply_snapshot(self, parts: list[v1.MetaSnapshot], stored_ms: int) -> None:
        version = parts[0].version
        if version <= self.version:
            return
        self.version = version
        self._metadata.replace(
            {topic.name: topic_of(topic) for part in parts for topic in part.topics},
            {group.name: group_of(group) for part in parts for group in part.groups},
            {user.name: user_of(user) for part in parts for user in part.users},
            {quota.subject: quota_of(quota) for part in parts for quota in part.quotas},
        )
        self._metadata.drained = parts[0].drained
        self._metadata.deleted_topics = {
            topic.name: topic.offset for part in parts for topic in part.deleted_topics
        }
        for group in (group for part in parts for group in part.deleted_groups):
            self._refuse_group(group.name, group.stays_deleted_ms, stored_ms)
        for topic in self._metadata.topics.values():
            self._hide_old(topic)

    def _from_newest_snapshot(self) -> list[Record]:
        """Return the dispatched records from the newest complete snapshot on; all without one."""
        first = self._store.min_offset(META_TOPIC, META_QUEUE)
        end = self._store.max_offset(META_TOPIC, META_QUEUE)
        found: list[Record] = []
        while end > first:
            start = max(first, end - _READ_RECORDS)
            found = [*self._read(start, end), *found]
            begin = _newest_snapshot(found)
            if begin is not None:
                return found[begin:]
            end = start
        return found

    def _read(self, start: int, end: int) -> list[Record]:
        records: list[Record] = []
        while start < end:
            result = self._store.get(META_TOPIC, META_QUEUE, start, end - start, _READ_BYTES)
            whole = [record for stored in result.records if (record := self._decoded(stored))]
            records += whole
            self.damaged += max(result.next_offset - start - len(whole), 0)
            if result.next_offset <= start and not self._store.blocks.searching:
                break
            start = result.next_offset
        return records

    def _decoded(self, stored: StoredRecord) -> Record | None:
        try:
            return decode(stored.data)
        except RecordFormatError as error:
            logger.warning(
                "meta_log.record_damaged offset=%d physical_offset=%d: %s",
                stored.queue_offset,
                stored.physical_offset,
                error,
            )
            return None

    def _undispatched(self) -> Iterator[Record]:
        """Yield the records of the topic after the queues' end: unconfirmed or not rebuilt."""
        mark = META_TOPIC.encode()
        offset = self._store.dispatched_offset
        need = _READ_BYTES
        while offset < self._store.log_end:
            data = self._store.read_log(offset, need)
            at = 0
            need = _READ_BYTES
            while at + BLANK.size <= len(data):
                size, magic = BLANK.unpack_from(data, at)
                if magic != MAGIC_BLANK:
                    if at + size > len(data):
                        need = max(need, size)
                        break
                    if data.find(mark, at, at + size) >= 0:
                        record = decode(data[at : at + size])
                        if record.topic == META_TOPIC:
                            yield record
                at += size
            if at == 0 and need <= len(data):
                raise ValueError(f"the log cannot be walked at offset {offset}")
            offset += at


def _newest_snapshot(records: list[Record]) -> int | None:
    """Return the index of the first part of the newest complete snapshot."""
    assembly = Assembly()
    newest = None
    for index, record in enumerate(records):
        if record.properties_dict.get(_TAG) == _TAG_SNAPSHOT:
            parts = assembly.add(v1.MetaSnapshot.FromString(record.body))
            if parts is not None:
                newest = index - len(parts) + 1
    return newest
