"""Metrics of connected clients: producers and consumers by language and version.

Clients choose their language and version freely. Values that are long or have unusual characters,
and series beyond `SERIES_MAX`, are counted as "other", so that clients cannot grow the page.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable
from typing import TYPE_CHECKING, Final

from ...front.metrics.families import Families, flag
from ..clients.telemetry import CONSUMER_TYPES
from ..metadata.tables import is_system_group

if TYPE_CHECKING:
    from prometheus_client.metrics_core import Metric

    from ..clients.registry import Client

OTHER: Final = "other"
#: Series of one family: about 250 bytes of the page each. The rarest are combined.
SERIES_MAX: Final = 1_000
#: "GOLANG", "DOT_NET", "5.0.7", "v5.1.3-rc1".
_PLAIN: Final = re.compile(r"[0-9A-Za-z_.+#-]{0,32}")
_LABELS: Final = ("language", "version", "protocol_type")

Series = tuple[str, ...]


def client_families(clients: Iterable[Client], families: Families) -> list[Metric]:
    """Return the metrics of these clients."""
    producers: Counter[Series] = Counter()
    consumers: Counter[Series] = Counter()
    for client in clients:
        who = (_plain(client.language), _plain(client.version), "grpc")
        if client.client_type in CONSUMER_TYPES:
            system = flag(is_system_group(client.group))
            consumers[(*who, client.group, "pop", system)] += 1
        else:
            producers[who] += 1
    return [
        families.gauge(
            "rocketmq_producer_connections",
            "Producers.",
            _capped(producers, (OTHER, OTHER, "grpc")),
            _LABELS,
        ),
        families.gauge(
            "rocketmq_consumer_connections",
            "Consumers.",
            _capped(consumers, (OTHER, OTHER, "grpc", OTHER, "pop", "false")),
            (*_LABELS, "consumer_group", "consume_mode", "is_system"),
        ),
    ]


def _plain(value: str) -> str:
    return value if _PLAIN.fullmatch(value) else OTHER


def _capped(series: Counter[Series], other: Series) -> list[tuple[Series, float]]:
    """Return the most frequent series; the rest is one series."""
    kept = series.most_common(SERIES_MAX)
    rest = series.total() - sum(number for _, number in kept)
    if rest:
        kept = [(labels, number) for labels, number in kept if labels != other]
        kept.append((other, series.total() - sum(number for _, number in kept)))
    return [(labels, float(number)) for labels, number in kept]
