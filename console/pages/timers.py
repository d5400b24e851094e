"""Timers and transactions: delayed messages that wait, and half messages without an outcome.

The list of delayed messages is that of `cometmq timer ls`. A page reads at most `_SCANNED_MAX` of
them and links to the following ones. Broker groups answer from their leaders.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute

from ...operations.errors import CliError
from ...proto import paths, v1, v2
from ..cluster import Cluster, problems
from ..inputs import bad, choice, moment_ms
from ..language import said
from ..views import Form, Plan, Views, link, moved
from .topics import consumers_of

_SECOND_MS = 1_000
#: Windows of the curve: title, and milliseconds; the wheel counts at most seven days.
WINDOWS = {
    "10 minutes": 600_000,
    "1 hour": 3_600_000,
    "1 day": 86_400_000,
    "7 days": 604_800_000,
}
# Points of a curve: one for some pixels of a wide screen.
_POINTS = 120
# Tiles: messages due within these times.
_SOON_MS = (60_000, 3_600_000, 86_400_000)
#: Messages of a page: two screens.
_ROWS = 20
#: Messages read for a search, and those of one call: some milliseconds of the broker each hundred.
_SCANNED_MAX, _ASKED = 1_024, 100
#: Transactions of a page.
_TRANSACTIONS_MAX = 100
_OUTCOMES = {"commit": v2.COMMIT, "rollback": v2.ROLLBACK}
_NOTICES = {
    "recalled": said("The message is recalled: it is not delivered."),
    "commit": said("The transaction is committed: its message is in its topic."),
    "rollback": said("The transaction is rolled back: its message is not delivered."),
}


@dataclass(slots=True)
class Waiting:
    """One page of the messages that wait."""

    rows: list[tuple[str, v1.WaitingMessage]] = field(default_factory=list)
    #: The slot with which the next page begins; 0: there is none.
    next_ms: int = 0
    #: A second has more messages than one answer lists.
    left_out: bool = False


def bounds_of(now_ms: int, window_ms: int) -> tuple[list[int], list[int]]:
    """Return the ends of the curve's steps, and all times to count up to, in order."""
    step_ms = max(_SECOND_MS, window_ms // _POINTS)
    curve = [now_ms + step_ms * n for n in range(1, window_ms // step_ms + 1)]
    return curve, sorted({*curve, *(now_ms + soon for soon in _SOON_MS)})


def per_second(now_ms: int, ends_ms: Sequence[int], counts: Sequence[int]) -> list[list[float]]:
    """Return the columns of the curve: the end of each step in seconds, and messages a second."""
    times, rates, before_ms, before = [], [], now_ms, 0
    for end_ms, count in zip(ends_ms, counts, strict=True):
        times.append(end_ms / _SECOND_MS)
        rates.append(round((count - before) * _SECOND_MS / (end_ms - before_ms), 3))
        before_ms, before = end_ms, count
    return [times, rates]


def merged(found: Sequence[tuple[str, v1.ListTimersResponse]]) -> Waiting:
    """Return the messages of all groups in the slots that each group has listed in full."""
    behind = [answer.next_slot_ms for _, answer in found if answer.next_slot_ms]
    horizon_ms = min(behind, default=0)
    rows = [
        (broker, one)
        for broker, answer in found
        for one in answer.timers
        if not horizon_ms or one.slot_ms < horizon_ms
    ]
    rows.sort(key=lambda row: row[1].due_ms)
    return Waiting(rows, horizon_ms, any(answer.left_out for _, answer in found))


def slot_of(text: str) -> int:
    """Return the slot with which a page begins, a number of a link of ours; 0: the first."""
    return int(text) if text.isascii() and text.isdigit() and len(text) < 16 else 0


def matches(one: v1.WaitingMessage, wanted: str) -> bool:
    """Return whether a text is in the topic, id, tag or keys."""
    text = " ".join((one.topic, one.message_id, one.tag, *one.keys))
    return wanted.lower() in text.lower()


class TimerPages:
    """The section of timers and transactions."""

    def __init__(self, cluster: Cluster, views: Views, wall_ms: Callable[[], int]) -> None:
        self._cluster = cluster
        self._views = views
        self._wall_ms = wall_ms

    def routes(self) -> list[BaseRoute]:
        """Return the routes of this section."""
        views = self._views
        return [
            views.show("/timers", self.timers),
            views.show("/timers/recall", self.plan_recall),
            views.act("/timers/recall", self.recall),
            views.show("/timers/decide", self.plan_decision),
            views.act("/timers/decide", self.decide),
        ]

    def timers(self, request: Request) -> Response:
        """Show the curve, the messages that match, and the open transactions."""
        query = request.query_params
        now_ms = self._wall_ms()
        window = query.get("window", "")
        window = window if window in WINDOWS else next(iter(WINDOWS))
        topic, wanted = query.get("topic", "").strip(), query.get("q", "")[:255].strip()
        error, begin_ms, end_ms = "", now_ms, 0
        try:
            begin_ms = moment_ms(query["begin"], now_ms) if query.get("begin") else now_ms
            end_ms = moment_ms(query["end"], now_ms) if query.get("end") else 0
        except CliError as refused:
            error = str(refused)
        ends_ms, bounds_ms = bounds_of(now_ms, WINDOWS[window])
        counting = v1.ListTimersRequest(begin_ms=now_ms, bounds_ms=bounds_ms)
        outcomes = self._cluster.each(paths.LIST_TIMERS, counting, v1.ListTimersResponse)
        due = dict.fromkeys(bounds_ms, 0)
        for answer in (one.answer for one in outcomes if one.answer is not None):
            for bound_ms, count in zip(bounds_ms, answer.due, strict=True):
                due[bound_ms] += count
        asked = v1.ListTimersRequest(
            topic=topic, begin_ms=begin_ms, end_ms=end_ms, slot_ms=slot_of(query.get("slot", ""))
        )
        waiting = Waiting() if error else self._waiting(asked, wanted)
        kept = {name: query.get(name, "") for name in ("topic", "q", "begin", "end", "window")}
        pending = v1.ListTransactionsRequest(count=_TRANSACTIONS_MAX)
        transactions = self._cluster.each(
            paths.LIST_TRANSACTIONS, pending, v1.ListTransactionsResponse
        )
        open_ones = [one.answer for one in transactions if one.answer is not None]
        return self._views.page(
            request,
            "timers.html",
            status=400 if error else 200,
            title=said("Timers and transactions"),
            problems=[*problems(outcomes), *problems(transactions)],
            notice=_NOTICES.get(query.get("done", ""), ""),
            error=error,
            query={**kept, "slot": query.get("slot", "")},
            windows={name: link("/timers", **{**kept, "window": name}) for name in WINDOWS},
            window=window,
            columns=per_second(now_ms, ends_ms, [due[end_ms] for end_ms in ends_ms]),
            due=[(soon, due[now_ms + soon]) for soon in _SOON_MS],
            waiting=waiting,
            following=link("/timers", **kept, slot=waiting.next_ms) if waiting.next_ms else "",
            now_ms=now_ms,
            transactions=[(one, answer) for answer in open_ones for one in answer.transactions],
            open=sum(answer.open for answer in open_ones),
            recovering=any(answer.recovering for answer in open_ones),
        )

    def _waiting(self, asked: v1.ListTimersRequest, wanted: str) -> Waiting:
        """Return the next messages that match; a search reads `_SCANNED_MAX`."""
        found = Waiting()
        scanned = 0
        while len(found.rows) < _ROWS and scanned < _SCANNED_MAX:
            asked.count = _ASKED if wanted else _ROWS
            outcomes = self._cluster.each(paths.LIST_TIMERS, asked, v1.ListTimersResponse)
            read = [(one.broker, one.answer) for one in outcomes if one.answer is not None]
            page = merged(read)
            scanned += len(page.rows)
            found.rows += [row for row in page.rows if matches(row[1], wanted)]
            found.left_out = found.left_out or page.left_out
            found.next_ms = asked.slot_ms = page.next_ms
            if not page.next_ms:
                break
        return found

    def plan_recall(self, request: Request) -> Response:
        """Show which message would be recalled."""
        query = request.query_params
        topic, handle = _named(query.get("topic", ""), query.get("handle", ""))
        plan = Plan(
            said("Recall a delayed message"),
            [
                said("Message {} of topic {} is not delivered.", query.get("id", "")[:255], topic),
                said(
                    "A recall cannot be undone. It has no effect if the message is due before it."
                ),
            ],
            "/timers/recall",
            said("Recall the message"),
            "/timers",
            fields={"topic": topic, "handle": handle},
        )
        return self._views.plan(request, plan)

    def recall(self, request: Request, form: Form) -> Response:
        """Recall a message."""
        topic, handle = _named(form.text("topic"), form.text("handle"))
        wanted = v2.RecallMessageRequest(topic=v2.Resource(name=topic), recall_handle=handle)
        self._cluster.connection.call(paths.RECALL_MESSAGE, wanted, v2.RecallMessageResponse)
        return moved("/timers", done="recalled")

    def plan_decision(self, request: Request) -> Response:
        """Show what a commit or rollback does."""
        query = request.query_params
        topic, ident = _named(query.get("topic", ""), query.get("id", ""))
        outcome = query.get("to", "")
        choice(_OUTCOMES, outcome, said("outcome"))
        if outcome == "commit":
            groups = ", ".join(consumers_of(self._cluster, topic)) or said("none yet")
            title, button = said("Commit a transaction"), said("Commit")
            effect = said("Its message is stored in topic {}. Consumer groups: {}.", topic, groups)
        else:
            title, button = said("Roll back a transaction"), said("Roll back")
            effect = said("Its message is never delivered to the consumers of topic {}.", topic)
        plan = Plan(
            title,
            [
                said("Transaction {} ends.", ident),
                effect,
                said(
                    "The producer is not asked. The outcome is final: a later report of "
                    "the other outcome by the producer is refused."
                ),
            ],
            "/timers/decide",
            button,
            "/timers#transactions",
            fields={"topic": topic, "id": ident, "to": outcome},
        )
        return self._views.plan(request, plan)

    def decide(self, request: Request, form: Form) -> Response:
        """Commit a transaction, or roll it back."""
        topic, ident = _named(form.text("topic"), form.text("id"))
        outcome = form.text("to")
        ends = choice(_OUTCOMES, outcome, said("outcome"))
        wanted = v2.EndTransactionRequest(
            topic=v2.Resource(name=topic),
            message_id=ident.split(":", 2)[-1],
            transaction_id=ident,
            resolution=v2.TransactionResolution.ValueType(ends),
        )
        self._cluster.connection.call(paths.END_TRANSACTION, wanted, v2.EndTransactionResponse)
        return moved("/timers", done=outcome)


def _named(topic: str, ident: str) -> tuple[str, str]:
    if not topic.strip() or not ident.strip():
        raise bad("Give the topic and the message.")
    return topic.strip(), ident.strip()
