"""The login of a console: who is not logged in gets nothing, who is gets what its user may."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from urllib.parse import urlencode

import pytest
from click.testing import CliRunner

from cometmq.cli.root import cli
from cometmq.console.pages.login import own_path
from cometmq.console.sessions import (
    IDLE_S,
    LONGEST_S,
    OF_ONE_MAX,
    BearerToken,
    Sessions,
    owner_of,
)
from cometmq.operations.credentials import Credentials, read_file
from cometmq.tests.auth.test_bearer import AUDIENCE, FIRST_KEY, ISSUER, document, token
from cometmq.tests.cli.access.test_auth_commands import run
from cometmq.tests.console.served import Answer, Served, serve
from cometmq.tests.harness.cluster import Cluster, wait_until

SECRET = "low-secret-key"
_TOKEN = re.compile(r'name="token" value="([^"]+)"')


class Browser:
    """A person's browser: keeps the cookie, and sends forms with the token of its pages."""

    def __init__(self, console: Served) -> None:
        self._console = console
        self.cookie = ""

    def get(self, path: str) -> Answer:
        return self._console.ask("GET", path, headers={"Cookie": self.cookie})

    def post(self, path: str, fields: Mapping[str, str], page: str) -> Answer:
        """Send a form with the token of a page."""
        found = _TOKEN.search(self.get(page).text)
        return self.send(path, {"token": found[1] if found else "", **fields})

    def send(self, path: str, fields: Mapping[str, str]) -> Answer:
        return self._console.ask("POST", path, urlencode(fields), {"Cookie": self.cookie})

    def log_in(self, **fields: str) -> Answer:
        answer = self.post("/login", fields, "/login")
        if "set-cookie" in answer.headers:
            self.cookie = answer.headers["set-cookie"].partition(";")[0]
        return answer


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """A cluster with users, and tokens of a provider."""
    folder = tmp_path_factory.mktemp("login")
    (folder / "keys.json").write_bytes(document(FIRST_KEY))
    env = {
        "COMETMQ_OIDC_ISSUER": ISSUER,
        "COMETMQ_OIDC_AUDIENCE": AUDIENCE,
        "COMETMQ_OIDC_JWKS": str(folder / "keys.json"),
    }
    found = Cluster(folder / "data", "--single", "--auth", env=env)
    try:
        found.start()
        for words in (
            ("user", "create", "low", "--secret", SECRET),
            ("topic", "create", "orders"),
            ("acl", "create", "--user", "low", "--resource", "Cluster:*", "--actions", "List,Get"),
        ):
            run(found, *words, "--data", str(found.data))
        yield found
    finally:
        found.stop()


@pytest.fixture(scope="module")
def console(cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    folder = tmp_path_factory.mktemp("served")
    with serve(folder, cluster.endpoints, "--data", str(cluster.data), "--login") as found:
        yield found


def test_without_a_login_there_is_nothing(console: Served) -> None:
    for path in ("/", "/topics", "/users", "/configuration", "/live", "/ha/live"):
        answer = console.ask("GET", path)
        assert (answer.status, answer.text) == (303, ""), path
        assert answer.headers["location"].startswith("/login?to=")
    assert console.ask("POST", "/topics", "name=a").status == 401
    for cookie in ("", "cometmq-session=", "cometmq-session=x", "cometmq-session=" + "a" * 4_000):
        assert console.ask("GET", "/topics", headers={"Cookie": cookie}).status == 303


def test_a_wrong_login_is_refused_and_too_many_close_the_name(console: Served) -> None:
    browser = Browser(console)
    for name in ("low", "absent"):
        answer = browser.log_in(user=name, secret="wrong-secret", to="/topics")
        assert f'name="user" value="{name}"' in answer.text
        assert 'name="to" value="/topics"' in answer.text
        assert answer.status == 403 and "does not accept this login" in answer.text
        assert "set-cookie" not in answer.headers
    assert browser.send("/login", {"token": "x", "user": "low", "secret": SECRET}).status == 403
    found = [browser.log_in(user="guessed", secret=f"guess-{n}").status for n in range(6)]
    assert found == [403] * 5 + [429]
    # Guesses at the same time are counted before their outcome is known.
    login = {"token": _TOKEN.search(browser.get("/login").text)[1], "user": "together"}  # type: ignore[index]
    with ThreadPoolExecutor(12) as pool:
        guesses = [{**login, "secret": f"guess-{n}"} for n in range(12)]
        found = [each.status for each in pool.map(lambda one: browser.send("/login", one), guesses)]
    assert sorted(found) == [403] * 5 + [429] * 7
    empty = browser.log_in(user="", secret="")
    assert (empty.status, "<form" in empty.text) == (400, True)
    assert browser.log_in(user="a\r\nb", secret="c").status == 400


def test_a_user_sees_and_changes_what_it_may(cluster: Cluster, console: Served) -> None:
    admin = read_file(cluster.data / "admin-credentials")
    low, boss = Browser(console), Browser(console)
    answer = low.log_in(user="low", secret=SECRET, to="/topics")
    assert (answer.status, answer.headers["location"]) == (303, "/topics")
    cookie = answer.headers["set-cookie"].lower()
    assert "httponly" in cookie and "samesite=strict" in cookie
    assert boss.log_in(user=admin.access_key, secret=admin.secret_key).status == 303
    assert "Logged in as" in low.get("/topics").text and "orders" in low.get("/topics").text
    assert low.get("/").status == 200

    fields = {"name": "planned", "kind": "normal", "queues": "1", "permission": "rw"}
    denied = low.post("/topics/new", fields, "/topics/new")
    assert denied.status == 502 and "User:low has no permission" in denied.text, denied.text
    assert "User:low has no permission" in low.get("/users").text
    assert "admin" in boss.get("/users").text
    # Forms belong to a session.
    theirs = _TOKEN.search(low.get("/topics/new").text)
    assert theirs and boss.send("/topics/new", {"token": theirs[1], **fields}).status == 403
    assert boss.post("/topics/new", fields, "/topics/new").status == 303
    assert "planned" in low.get("/topics").text

    assert boss.post("/logout", {}, "/topics").headers["location"] == "/login"
    assert boss.get("/topics").status == 303


def test_a_page_of_one_user_refuses_no_other_user(console: Served, cluster: Cluster) -> None:
    admin = read_file(cluster.data / "admin-credentials")
    boss, low = Browser(console), Browser(console)
    assert boss.log_in(user=admin.access_key, secret=admin.secret_key).status == 303
    # It reads messages: from then on the client id belongs to the user.
    sent = boss.post("/topics/orders/send", {"kind": "normal", "body": "a"}, "/topics/orders")
    assert sent.status < 400, sent.text
    assert "orders" in boss.get("/messages?topic=orders&by=offset&queue=0&offset=0").text
    assert low.log_in(user="low", secret=SECRET).status == 303
    assert "orders" in low.get("/topics").text


def test_a_bearer_token_logs_in_and_a_disabled_user_is_out(
    cluster: Cluster, console: Served
) -> None:
    data = ("--data", str(cluster.data))
    browser, other = Browser(console), Browser(console)
    assert browser.log_in(bearer=token(sub="absent")).status == 403
    assert browser.log_in(bearer=token(aud="other")).status == 403
    assert browser.log_in(bearer=token()).status == 303
    assert "orders" in browser.get("/topics").text
    run(cluster, "user", "create", "bare", "--secret", SECRET, *data)
    assert other.log_in(user="bare", secret=SECRET).status == 303
    assert "may not read the cluster" in other.get("/state").text
    assert "no permission" in other.get("/topics").text
    run(cluster, "user", "disable", "low", *data)
    wait_until("the session ends", lambda: browser.get("/topics").status == 303)
    run(cluster, "user", "enable", "low", *data)


def test_a_stream_of_a_user_that_is_disabled_ends(cluster: Cluster, console: Served) -> None:
    data = ("--data", str(cluster.data))
    run(cluster, "user", "create", "watcher", "--secret", SECRET, *data)
    browser = Browser(console)
    assert browser.log_in(user="watcher", secret=SECRET).status == 303
    with console.stream(headers={"Cookie": browser.cookie}) as stream:
        assert stream.readline()
        run(cluster, "user", "disable", "watcher", *data)
        ends = any(not stream.readline() for _ in range(10_000))
    assert ends


@pytest.mark.parametrize(
    "to", ["//evil.example", "/\\evil.example", "https://evil.example", "javascript:1", "/a\nb", ""]
)
def test_a_login_leads_to_pages_of_the_console_only(to: str) -> None:
    assert own_path(to) == "/"
    assert own_path("/topics?q=a") == "/topics?q=a"


def test_sessions_have_an_end_and_a_number() -> None:
    now_ns = [0]
    sessions = Sessions(lambda: now_ns[0])
    user = Credentials("u", "secret")
    cookies = [sessions.open(user, may_watch=True) for _ in range(OF_ONE_MAX + 1)]
    assert len(sessions) == OF_ONE_MAX and sessions.find(cookies[0]) is None
    now_ns[0] = IDLE_S * 10**9
    assert sessions.find(cookies[1]) and sessions.find(cookies[2], is_used=False)
    now_ns[0] += 10**9
    assert sessions.find(cookies[1]) and sessions.find(cookies[2]) is None
    used = sessions.find(cookies[1])
    while now_ns[0] <= LONGEST_S * 10**9:
        assert used and sessions.find(cookies[1]) is used
        now_ns[0] += IDLE_S * 10**9
    assert sessions.find(cookies[1]) is None and used and used.ended


def test_bearer_tokens_have_sessions_and_wrong_logins_by_subject() -> None:
    sessions = Sessions(lambda: 0)
    other = sessions.open(BearerToken(token(sub="other")), may_watch=True)
    for n in range(OF_ONE_MAX + 1):
        sessions.open(BearerToken(token(jti=str(n))), may_watch=True)
    assert len(sessions) == OF_ONE_MAX + 1 and sessions.find(other)
    assert owner_of(BearerToken(token())) != owner_of(BearerToken(token(iss="elsewhere")))
    for text in ("", "a", "a.b.c", "a.W10.c", f"a.{'W1tb' * 9_000}.c", "a.\u00e9.c"):
        assert owner_of(BearerToken(text)) == owner_of(BearerToken("a"))


def test_a_login_contradicts_changes_for_everyone() -> None:
    for options in (("--login", "--allow-changes"), ("--login", "--also-context", "x")):
        found = CliRunner().invoke(cli, ["console", *options])
        assert "leave out --allow-changes and --also-context" in str(found.exception)
    outside = ("--host", "10.0.0.9", "--allow-host", "a.example", "--allow-changes")
    found = CliRunner().invoke(cli, ["console", *outside])
    assert "Use --login" in str(found.exception)
