"""High availability: roles, epochs, in-sync sets, log positions over time, archived tails; changes.

The figures are those of `cometmq ha status`, which a node of each group reads from the controller
and the replicas. Each change shows its plan first: the steps of the same call with `dry_run`.
"""

import json
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from ...operations.errors import CliError, Exit
from ...proto import paths, v1
from ..cluster import Cluster, check, problems
from ..inputs import bad, choice, whole
from ..language import said
from ..live import Watch, event, streaming
from ..overview import picture
from ..replication import group_values, view_of
from ..views import Form, Plan, Views, quoted

_BROKER_ID_MAX, _IN_SYNC_MAX = 1_000_000, 16
_FILE_ID_CHARS = 255
# The next leader must catch up within this time; the controller's own steps take longer.
_CATCH_UP_MS, _CHANGE_S = 10_000, 30.0
# A replay that takes longer is interrupted; its progress is durable, and the next one continues.
_REPLAY_S = 120.0
_REPLICATION = {"": 0, "sync": 1, "async": 2}


@dataclass(frozen=True, slots=True)
class Change:
    """A change of a group, as a request and in words."""

    request: v1.ChangeReplicationRequest
    title: str
    button: str
    #: The fields of its form.
    fields: Mapping[str, str]
    #: What the steps of the controller leave out.
    more: list[str] = field(default_factory=list)
    timeout_s: float = _CHANGE_S


class HighAvailabilityPages:
    """The section of high availability."""

    def __init__(self, cluster: Cluster, watch: Watch, views: Views) -> None:
        self._cluster = cluster
        self._watch = watch
        self._views = views

    def routes(self) -> list[BaseRoute]:
        """Return the routes of this section."""
        views = self._views
        return [
            views.show("/ha", self.overview),
            Route("/ha/live", self.live, methods=["GET"]),
            views.show("/ha/{group}/{what}", self.plan),
            views.act("/ha/{group}/{what}", self.carry_out),
        ]

    def overview(self, request: Request) -> Response:
        """Show every broker group."""
        outcomes = self._cluster.each(
            paths.DESCRIBE_REPLICATION,
            v1.DescribeReplicationRequest(),
            v1.DescribeReplicationResponse,
        )
        seen = self._watch.asked()
        return self._views.page(
            request,
            "ha.html",
            title=said("High availability"),
            groups=[group_values(view_of(one.answer)) for one in outcomes if one.answer],
            brokers=[(one, picture(one, seen.unreachable)) for one in seen.groups if one.answer],
            problems=problems(outcomes),
        )

    async def live(self, _request: Request) -> Response:
        """Stream the positions of the replicas as points of curves."""
        return streaming(self._watch, self._events())

    async def _events(self) -> AsyncIterator[str]:
        sent: dict[str, list[int]] = {}
        async for snapshot in self._watch.changes():
            for group in snapshot.groups:
                history = self._watch.replicas.get(group.title)
                if history is None:
                    continue
                message: dict[str, object] = {"group": group.title, "point": history.last()}
                if sent.get(group.title) != history.broker_ids:
                    sent[group.title] = list(history.broker_ids)
                    message = {
                        "group": group.title,
                        "brokers": history.broker_ids,
                        "all": history.columns(),
                    }
                yield event("replicas", json.dumps(message))

    # --- changes ----------------------------------------------------------------------------------

    def plan(self, request: Request) -> Response:
        """Show the steps of a change."""
        group, what = request.path_params["group"], request.path_params["what"]
        change = change_of(what, dict(request.query_params), group)
        steps, refusal = [], ""
        try:
            answer = self._call(group, change, dry_run=True)
            steps = [_sentence(step) for step in answer.steps]
            if what == "replay" and not answer.messages:
                refusal = said("There is nothing to replay.")
        except CliError as error:
            if error.code is Exit.NOT_FOUND:
                raise
            refusal = said("This cannot be done now: {}", error)
        plan = Plan(
            change.title,
            [*steps, *([] if refusal else change.more)],
            f"/ha/{quoted(group)}/{what}",
            change.button,
            "/ha",
            fields=change.fields,
            refusal=refusal,
        )
        return self._views.plan(request, plan)

    def carry_out(self, request: Request, form: Form) -> Response:
        """Carry out a change and show its steps."""
        group, what = request.path_params["group"], request.path_params["what"]
        change = change_of(what, form, group)
        answer = self._call(group, change, dry_run=False)
        steps = [_sentence(step) for step in answer.steps]
        if what == "replay":
            steps.append(said("{} messages were sent again.", answer.messages))
        elif answer.message:
            steps.append(_sentence(answer.message))
        return self._views.page(
            request, "ha_changed.html", title=said("Result"), group=group, steps=steps
        )

    def _call(self, group: str, change: Change, *, dry_run: bool) -> v1.ChangeReplicationResponse:
        change.request.dry_run = dry_run
        outcomes = self._cluster.groups((group,), change.timeout_s).each(
            paths.CHANGE_REPLICATION, change.request, v1.ChangeReplicationResponse
        )
        check(outcomes)
        answer = outcomes[0].answer
        assert answer is not None
        return answer


def change_of(what: str, given: Mapping[str, str], group: str) -> Change:
    """Return the change that a URL or a form describes. Raises CliError."""
    if what == "switchover":
        return _switchover(given, group)
    if what == "policy":
        return _policy(given, group)
    if what == "drain":
        return _drain(given, group)
    if what == "replay":
        return _replay(given, group)
    raise CliError(said("There is no change '{}' of a group.", what[:40]), Exit.NOT_FOUND)


def _switchover(given: Mapping[str, str], group: str) -> Change:
    to = whole(given.get("to", "").strip(), said("The broker id"), most=_BROKER_ID_MAX)
    asked = v1.SwitchoverRequest(to=to, max_wait_ms=_CATCH_UP_MS)
    return Change(
        v1.ChangeReplicationRequest(switchover=asked),
        said("Make broker {} the leader of {}", to, group),
        said("Switch over"),
        {"to": str(to)},
        [said("Sends wait during the change; clients see no errors.")],
    )


def _policy(given: Mapping[str, str], group: str) -> Change:
    how = given.get("replication", "")
    number = choice(_REPLICATION, how, said("kind of replication"))
    least = given.get("min_in_sync", "").strip()
    asked = v1.SetPolicyRequest()
    if number:
        asked.sync = how == "sync"
    if least:
        asked.min_in_sync = whole(least, said("In-sync replicas"), least=1, most=_IN_SYNC_MAX)
    if not (number or least):
        raise bad("Choose what the policy changes.")
    return Change(
        v1.ChangeReplicationRequest(policy=asked),
        said("Change the replication policy of {}", group),
        said("Change the policy"),
        {"replication": how, "min_in_sync": least},
    )


def _drain(given: Mapping[str, str], group: str) -> Change:
    is_drain = bool(choice({"yes": 1, "no": 0}, given.get("drain", ""), said("answer")))
    title = said("Drain {}", group) if is_drain else said("Let {} accept messages again", group)
    return Change(
        v1.ChangeReplicationRequest(drain=v1.SetDrainRequest(drain=is_drain)),
        title,
        said("Drain") if is_drain else said("Accept messages"),
        {"drain": "yes" if is_drain else "no"},
    )


def _replay(given: Mapping[str, str], group: str) -> Change:
    text, file_id = given.get("broker", "").strip(), given.get("file", "")[:_FILE_ID_CHARS]
    broker_id = whole(text, said("The broker id"), most=_BROKER_ID_MAX) if text else -1
    what = said("an archived tail") if file_id else said("the archived tails")
    return Change(
        v1.ChangeReplicationRequest(replay=v1.ReplayTails(broker_id=broker_id, file_id=file_id)),
        said("Replay {} of {}", what, group),
        said("Send again"),
        {"broker": text, "file": file_id},
        [
            said(
                "Each message is sent to the leader as by a producer; the archives stay. "
                "Messages that were sent by their producers meanwhile are then stored "
                "twice."
            ),
            said(
                "A replay that is interrupted continues where it stopped when it is started again."
            ),
        ],
        timeout_s=_REPLAY_S,
    )


def _sentence(step: str) -> str:
    """Return a step as a sentence."""
    return step[:1].upper() + step[1:] + ("" if step.endswith((".", "!", "?")) else ".")
