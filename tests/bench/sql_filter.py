"""SQL filter expressions: evaluations per second, with the message's properties decoded each time.

`python -m cometmq.tests.bench.sql_filter` prints rows. A message is as the broker stores it (16
properties, four of them user properties), and each is evaluated once, as for a consumer with a
filter. The bound is decoding alone, in the same run; tags are shown for comparison. Medians of the
rounds, CPU time.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable

from cometmq.broker.messages.filters import Filter, SqlFilter, of_tags
from cometmq.broker.sql import compile_sql
from cometmq.store.format.properties import encode_properties
from cometmq.store.format.record import Delivery
from cometmq.tests.bench.rows import Row, show

EXPRESSIONS = {
    "one comparison": "amount > 100",
    "four, AND and OR": "amount > 100 AND region = 'eu'"
    " AND (level IN ('gold', 'silver') OR vip = TRUE)",
    "texts and BETWEEN": "region STARTSWITH 'e' AND amount BETWEEN 1 AND 1000 AND note IS NULL",
}
TARGET = 150_000


def records(count: int) -> list[Delivery]:
    """Return messages as read from the store."""
    found = []
    for n in range(count):
        properties = {
            "MSG_REGION": "DefaultRegion", "UNIQ_KEY": f"01FD{n:030X}", "CLUSTER": "DefaultCluster",
            "PGROUP": "orders", "RECONSUME_TIME": "0", "TAGS": f"tag{n % 5}",
            "__BORNHOST": "10.0.0.1", "BORN_TIMESTAMP": "1795255684123", "KEYS": f"order-{n}",
            "TRACE_ON": "true", "amount": str(n % 1_000), "region": ("eu", "us")[n % 2],
            "level": ("gold", "basic")[n % 3 == 0], "vip": "false",
        }  # fmt: skip
        found.append(Delivery(b"", encode_properties(properties), 0, n, 0, 0, 0, 0, b"", 0, b"", 0))
    return found


def per_second(work: Callable[[], None], count: int, rounds: int) -> float:
    """Return operations per CPU second; the median of the rounds."""
    took = []
    for _ in range(rounds):
        begin = time.process_time()
        work()
        took.append(time.process_time() - begin)
    return count / statistics.median(took)


def asked(wanted: Filter, messages: list[Delivery]) -> Callable[[], None]:
    """Evaluate every message; properties are not decoded before."""

    def work() -> None:
        for message in messages:
            message.decoded = None
            wanted.matches(message)

    return work


def main() -> None:
    """Print the rows."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--messages", type=int, default=50_000)
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    messages = records(options.messages)
    decode = SqlFilter("", lambda properties: True)
    bound = per_second(asked(decode, messages), options.messages, options.rounds)
    rows = [Row("decoding the properties alone", bound, "/s")]
    for name, text in EXPRESSIONS.items():
        wanted = SqlFilter(text, compile_sql(text))
        speed = per_second(asked(wanted, messages), options.messages, options.rounds)
        target = f"at least {TARGET:,}/s"
        rows.append(
            Row(f"SQL: {name}", speed, "/s", "decoding", speed / bound, target, speed >= TARGET)
        )
    speed = per_second(asked(of_tags(["tag1"]), messages), options.messages, options.rounds)
    rows.append(Row("one tag", speed, "/s"))
    show(rows)


if __name__ == "__main__":
    main()
