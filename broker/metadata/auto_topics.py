"""Automatic creation of topics on first use (`autoCreateTopicEnable`, off by default).

With it off, an unknown topic is an error, as it is for gRPC clients behind Apache's proxy
(docs/formats/broker-semantics.md, section 8.1). With it on, the first route query or the first
message creates the topic: type NORMAL, at most four queues, as Apache's broker does for its
remoting clients. Names of retry, dead-letter and light queues are never created this way.

Classic clients know no such query: a producer without a route takes that of the template topic, and
names the template and its own number of queues in the message (docs/formats/remoting.md, section
9). So the brokers that create topics register the template, and each creates the topic when a
message reaches it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ...proto import v2
from .tables import Topic, type_attribute

if TYPE_CHECKING:
    from ..base.cluster_view import ClusterView
    from ..base.config import BrokerConfig
    from ..base.leadership import Leadership
    from ..visible.dispatch_pump import DispatchPump
    from .changes import MetadataChanges
    from .tables import Metadata

QUEUES_MAX = 4
_NEVER_CREATED = ("%RETRY%", "%DLQ%", "%LMQ%")


class AutoTopics:
    """Looks up topics and creates missing ones where that is allowed."""

    def __init__(
        self,
        *,
        config: BrokerConfig,
        metadata: Metadata,
        changes: MetadataChanges,
        leadership: Leadership,
        pump: DispatchPump,
        cluster: ClusterView,
    ) -> None:
        self._config = config
        self._metadata = metadata
        self._changes = changes
        self._leadership = leadership
        self._pump = pump
        self._cluster = cluster

    def topic_or_new(self, name: str, template_queues: int = 0) -> Topic | None:
        """Return the topic, created if necessary and allowed; None if it does not exist.

        `name` is a legal topic name, `template_queues` the number of queues that a classic client
        wants. Raises WireError.
        """
        topic = self._metadata.topic(name)
        if topic is not None or not self._may_create(name, everywhere=template_queues > 0):
            return topic
        self._changes.check_writable()
        self._metadata.check_topic_limit(name)
        queues = min(template_queues or QUEUES_MAX, self._config.default_topic_queue_nums)
        topic = Topic(name, queues, queues, attributes=type_attribute(v2.NORMAL))
        self._changes.log.write_topic(topic)
        self._pump.appended()
        return topic

    def _may_create(self, name: str, *, everywhere: bool) -> bool:
        return (
            self._config.auto_create_topic_enable
            and self._leadership.is_leader
            and not self._metadata.drained
            and not name.startswith(_NEVER_CREATED)
            # If another group of the cluster has the topic, clients of gRPC send there.
            and (everywhere or not self._cluster.others_with(name))
        )
