"""The result of a run as a document, and as a row of a table."""

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from .ledger import Outcome
from .running import Load, Measurement
from .workloads import Workload


def document_of(
    name: str, workload: Workload, load: Load, endpoint: str, found: Measurement
) -> dict[str, Any]:
    """Return the JSON document of a run; times in ms, CPU time in us for each message."""
    ledger, messages = found.ledger, found.latencies.messages
    return {
        "workload": name,
        "title": workload.title,
        "latency_of": workload.measured.name.lower(),
        "endpoint": endpoint,
        "size_bytes": load.size_bytes,
        "loop": "closed" if load.rate is None else "open",
        "rate": load.rate,
        "in_flight": load.in_flight,
        "send_batch": load.send_batch,
        "receive_batch": load.receive_batch,
        "receivers": load.receivers,
        "seconds": round(found.seconds, 3),
        "messages": messages,
        "messages_per_s": round(messages / found.seconds, 1),
        "mib_per_s": round(messages * load.size_bytes / found.seconds / (1 << 20), 2),
        "latency_ms": found.latencies.summary(),
        "client_cpu_us": _us(found.used.client_s, messages),
        "server_cpu_us": {
            server: _us(used_s, messages) for server, used_s in found.used.servers_s.items()
        },
        "sent": ledger.begun,
        "acknowledged": ledger.count(Outcome.ACKNOWLEDGED),
        "failed": ledger.count(Outcome.FAILED),
        "unknown": ledger.count(Outcome.UNKNOWN),
        "received": ledger.distinct_received,
        "lost": ledger.missing,
        "duplicated": ledger.duplicated,
        "out_of_order": ledger.out_of_order,
        "not_selected": ledger.not_selected,
        "errors": dict(ledger.errors.most_common(_ERRORS_MAX)),
        "percentiles_ms": [list(each) for each in found.latencies.percentiles()],
        "curve": [asdict(point) for point in found.latencies.points],
    }


#: Different error texts of a document.
_ERRORS_MAX = 20


def _us(seconds: float, messages: int) -> float | None:
    return round(seconds * 1e6 / messages, 1) if messages else None


def row_of(document: Mapping[str, Any]) -> dict[str, Any]:
    """Return the row of the table."""
    latency = document["latency_ms"] or {}
    servers = [each for each in document["server_cpu_us"].values() if each is not None]
    return {
        "workload": document["workload"],
        "messages": document["messages"],
        "per_s": document["messages_per_s"],
        "p50_ms": latency.get("p50"),
        "p99_ms": latency.get("p99"),
        "p99.9_ms": latency.get("p99_9"),
        "max_ms": latency.get("max"),
        "client_us": document["client_cpu_us"],
        "server_us": round(sum(servers), 1) if servers else None,
        "failed": document["failed"] + document["unknown"],
        "lost": document["lost"],
        "duplicated": document["duplicated"],
    }


def is_wrong(document: Mapping[str, Any]) -> bool:
    """Whether messages were lost, delivered out of order or against the filter, or refused."""
    return any(
        document[name] for name in ("lost", "out_of_order", "not_selected", "failed", "unknown")
    )
