"""The banner of `cometmq up`: addresses, the durability of an OK answer, how to connect.

Pure functions. The official Java, Go, C# and C++ clients use TLS by default and the grpcio door
does not support it, so the banner shows how to switch TLS off.
"""

import shlex
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from .plan import Plan
from .ports import HOST

_CLASSIC = "namesrv_remoting"
_MEANING = {
    ("async", "async"): "in the master's page cache: survives a crash of the process",
    ("sync", "async"): "on the master's disk: survives power loss",
    ("async", "sync"): "in the memory of every in-sync replica: survives the loss of one",
    ("sync", "sync"): "on the disk of every in-sync replica",
}

#: What programs in Python, Java and Go say in addition to sign their calls.
_SIGNED = (
    'Credentials("admin", SECRET_KEY)',
    '.setCredentialProvider(new StaticSessionCredentialsProvider("admin", SECRET_KEY))',
    ', Credentials: &credentials.SessionCredentials{AccessKey: "admin", AccessSecret: SECRET_KEY}',
)


def endpoints(plans: Sequence[Plan]) -> str:
    """Return the endpoints for clients: every access point."""
    ports = [plan.ports["client"] for plan in plans if "client" in plan.ports]
    return ";".join(f"{HOST}:{port}" for port in ports)


def nameservers(plans: Sequence[Plan]) -> str:
    """Return the addresses of the nameservers."""
    ports = [plan.ports["namesrv"] for plan in plans if "namesrv" in plan.ports]
    return ";".join(f"{HOST}:{port}" for port in ports)


def durability(state: Mapping[str, Any], replicas: int) -> str:
    """Describe what an OK of the leader with this state means; the policy is the one in force."""
    flush, replication = state["flush"], state["replication"]
    # One replica has none to wait for.
    meaning = _MEANING[flush, replication if replicas > 1 else "async"]
    return f"{flush} flush, {replication} replication; OK means: {meaning}"


def groups_of(plans: Sequence[Plan]) -> dict[str, list[Plan]]:
    """Return the brokers by group."""
    found: dict[str, list[Plan]] = {}
    for plan in plans:
        if plan.group:
            found.setdefault(plan.group, []).append(plan)
    return found


def in_sync(state: Mapping[str, Any], replicas: int) -> str:
    """Describe the in-sync set of the leader with this state; "" without a leader."""
    if state.get("role") != "leader":
        return ""
    count = int(state["in_sync"])
    words = f"{count} of {replicas}"
    if state.get("write_refusal"):
        return f"{words}: writes are refused ({state['write_refusal']})"
    if state["replication"] == "sync" and count < replicas:
        return f"{words}: the master acknowledges alone until a slave has caught up"
    return words


def banner(
    *,
    version: str,
    plans: Sequence[Plan],
    pids: Mapping[str, int],
    bound: Mapping[str, str],
    states: Mapping[str, Mapping[str, Any]],
    data: str,
    seconds: float,
) -> str:
    """Return the banner; `bound` is that of a leader, `states` are those of each group's leader."""
    door = bound.get("door", "grpcio")
    rows = [("endpoints", endpoints(plans))]
    rows += [(plan.name, _addresses(plan, pids.get(plan.name, 0))) for plan in plans]
    classic = [plan.ports[_CLASSIC] for plan in plans if _CLASSIC in plan.ports]
    if classic:
        # The nameserver of rocketmq-client 4.x, client-go v2 and mqadmin.
        rows.append(("classic", f"namesrvAddr={';'.join(f'{HOST}:{port}' for port in classic)}"))
    rows.append(
        ("door", "native (TLS and plaintext)" if door == "native" else f"{door}, plaintext")
    )
    rows += _of_groups("durability", durability, states, plans)
    rows += _of_groups("in sync", in_sync, states, plans)
    rows.append(("security", f"listens on {HOST} only; {_security(plans)}"))
    rows.append(("data", data))
    consoles = [plan.flags["console_port"] for plan in plans if "console_port" in plan.flags]
    rows += [("console", f"http://{HOST}:{port}/") for port in consoles]
    lines = [f"CometMQ {version} is ready after {seconds:.1f} s.", ""]
    lines += [f"  {name:<11} {text}" for name, text in rows]
    lines += ["", *_how_to_connect(endpoints(plans), door, data if _has_users(plans) else ""), ""]
    lines.append("Press Ctrl-C to drain and stop the cluster.")
    return "\n".join(lines)


def _of_groups(
    title: str,
    describe: Callable[[Mapping[str, Any], int], str],
    states: Mapping[str, Mapping[str, Any]],
    plans: Sequence[Plan],
) -> list[tuple[str, str]]:
    """Return a row for all groups, or one for each if their descriptions differ."""
    groups = groups_of(plans)
    texts = {name: describe(states[name], len(groups[name])) for name in groups}
    if len(set(texts.values())) == 1:
        text = next(iter(texts.values()))
        each = " in each group" if len(texts) > 1 and title == "in sync" else ""
        return [(title, text + each)] if text else []
    return [(title, f"{name}: {text}") for name, text in texts.items() if text]


def _has_users(plans: Sequence[Plan]) -> bool:
    return any(plan.flags.get("authentication_enabled") for plan in plans)


def _security(plans: Sequence[Plan]) -> str:
    if _has_users(plans):
        return "signatures and permissions are checked (keys: admin-credentials in the data)"
    return "signatures are accepted unchecked"


def _addresses(plan: Plan, pid: int) -> str:
    ports = plan.ports
    parts = []
    if "client" in ports:
        parts.append(f"{HOST}:{ports['client']}")
    if "namesrv" in ports:
        parts.append(f"{'nameserver ' if parts else ''}{HOST}:{ports['namesrv']}")
    if "ha" in ports:
        parts.append(f"replication {ports['ha']}")
    if "remoting" in ports:
        parts.append(f"remoting {ports['remoting']}")
    if _CLASSIC in ports:
        of = "nameserver's " if "remoting" in ports else ""
        parts.append(f"{of}remoting {ports[_CLASSIC]}")
    if "metrics" in ports:
        parts.append(f"http://{HOST}:{ports['metrics']}/metrics")
    return f"{', '.join(parts)}, process {pid}"


def _how_to_connect(target: str, door: str, keys: str) -> list[str]:
    """Return one line for each language, with TLS switched off where the door needs plaintext.

    `keys`: the data directory with the keys that sign calls; empty: there are no users.
    """
    first = target.split(";", maxsplit=1)[0]
    endpoint = "" if first == f"{HOST}:8081" else f" --endpoint {first}"
    endpoint = f" --data {shlex.quote(keys)}" if keys else endpoint
    python, java, go = _SIGNED if keys else ("Credentials()", "", "")
    plain_java = "" if door == "native" else ".enableSsl(false)"
    plain_go = "" if door == "native" else "golang.EnableSsl = false; "
    lines = [
        f"  first       cometmq topic create orders{endpoint}",
        f'  Python      ClientConfiguration("{target}", {python})',
        f'  Java        ClientConfiguration.newBuilder().setEndpoints("{target}")'
        f"{java}{plain_java}.build()",
        f'  Go          {plain_go}golang.NewProducer(&golang.Config{{Endpoint: "{target}"{go}}})',
    ]
    if door != "native":
        lines.append(
            "  C#, C++     EnableSsl(false), withSsl(false); Python, Node and Rust need no change"
        )
    return lines
