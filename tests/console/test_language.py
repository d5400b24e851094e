"""The pages in Chinese: no text without a translation, the language of a request, the switch."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from markupsafe import Markup
from starlette.datastructures import Headers

import cometmq
from cometmq.console.language import (
    COOKIE,
    LANGUAGE,
    LANGUAGES,
    MARKED,
    catalogue,
    chosen,
    counted,
    said,
)
from cometmq.console.views import templates
from cometmq.tests.console.browser import SIZES, chromium, opened, violations
from cometmq.tests.console.served import Served, told
from cometmq.tests.harness.cluster import Cluster, wait_until

ROOT = Path(cometmq.__file__).parent
CONSOLE = ROOT / "console"
# Names, and what is the same in every language.
_SAME = {"CometMQ", "JSON", "CSV", "Topic", "orders", "number", "wide", "notice", "warning"}
# Calls that mark a sentence, and what is not shown on a page: errors of the command, logs,
# answers without a page.
_MARKS = {"said", "bad"}
_NOT_PAGES = {"command.py", "protocol.py", "targets.py", "server.py", "security.py", "sessions.py"}
_NOT_SHOWN = (
    *("The session has ended", "The form is from another page."),
    *("Give at most {} descriptor", "The descriptor set", "Cannot read"),
)
ZH = {"Accept-Language": "zh-CN,zh;q=0.9,en;q=0.8"}


def test_every_text_has_a_translation_with_the_same_values() -> None:
    done = subprocess.run(
        [sys.executable, str(ROOT / "scripts" / "gen_messages"), "--check"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr


def unmarked(source: str) -> list[str]:
    """Return the words of a template that no mark has: of texts, attributes, and literals."""
    rest = MARKED.sub("", source)
    shown = re.findall(r'\b(?:placeholder|aria-label|data-label)="([^"{}]+)"', rest)
    for expression in re.findall(r"\{\{.*?\}\}", rest, re.DOTALL):
        calls = r'said\("[^"]*"|counted\((?:[^()"]|\([^()]*\))*, "[^"]*"'
        literals = re.findall(r'"([^"]*)"', re.sub(calls, "", expression))
        shown += [one for one in literals if re.match(r"[A-Z]|[a-z]+ [a-z]", one)]
    bare = re.sub(r"\{%.*?%\}|\{\{.*?\}\}|\{#.*?#\}|<code>.*?</code>", " ", rest, flags=re.DOTALL)
    shown.append(re.sub(r"<[^>]*>|&\w+;", " ", bare))
    words = (word for text in shown for word in re.findall(r"[A-Za-z]{2,}", text))
    return [word for word in words if word not in _SAME]


@pytest.mark.parametrize(
    "file", sorted((CONSOLE / "templates").glob("*.html")), ids=lambda f: f.name
)
def test_every_text_of_a_template_is_marked(file: Path) -> None:
    assert unmarked(file.read_text()) == []


def sentences(tree: ast.AST) -> Iterator[str]:
    """Yield the sentences of code that no call marks; those of docstrings are none."""
    left_out: set[ast.AST] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Expr):
            left_out.add(node.value)
        if isinstance(node, ast.JoinedStr):
            left_out.update(node.values)
        if isinstance(node, ast.Call) and getattr(node.func, "id", "") in _MARKS:
            left_out.update(node.args[:1])
    for node in ast.walk(tree):
        text = ""
        if isinstance(node, ast.JoinedStr):
            parts = (getattr(one, "value", "") for one in node.values)
            text = "".join(one if isinstance(one, str) else "{}" for one in parts)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            text = node.value
        if node not in left_out and re.search(r"^[A-Z{].* .*[.:]$", text):
            yield text


@pytest.mark.parametrize("file", sorted(CONSOLE.rglob("*.py")), ids=lambda f: f.name)
def test_every_sentence_of_the_code_is_marked(file: Path) -> None:
    if file.name not in _NOT_PAGES:
        found = sentences(ast.parse(file.read_text()))
        assert [text for text in found if not text.startswith(_NOT_SHOWN)] == []


@pytest.mark.parametrize("language", LANGUAGES)
def test_every_template_compiles_in_every_language(language: str) -> None:
    environment = templates("t", allow_changes=True).environment(language)
    for name in environment.list_templates():
        environment.get_template(name)


def test_a_sentence_is_english_as_a_text_and_translated_on_a_page() -> None:
    translate = catalogue("zh").gettext
    sentence = said("Group {} has no consumer: {}.", "<b>", said("{} wait", counted(3, "message")))
    assert sentence == "Group <b> has no consumer: 3 messages wait."
    rendering = templates("t", allow_changes=True)
    assert Markup("{}").format(sentence) == "Group &lt;b&gt; has no consumer: 3 messages wait."
    page = rendering.environment("zh").from_string("{{ text }}")
    assert page.render(text=sentence) == "消费组 &lt;b&gt; 没有消费者：3 条消息在等待。"
    assert translate("{} message").format(1) == "1 条消息"
    assert str(ValueError(sentence)) == sentence


@pytest.mark.parametrize(
    ("cookie", "accepted", "language"),
    [
        ("", "zh-CN,zh;q=0.9,en;q=0.8", "zh"),
        ("", "de,en;q=0.8,zh;q=0.7", "en"),
        ("en", "zh-CN", "en"),
        ("zh", "en", "zh"),
        ("<odd>", "", "en"),
    ],
)
def test_the_cookie_or_the_browser_chooses_the_language(
    cookie: str, accepted: str, language: str
) -> None:
    headers = Headers({"cookie": f"{COOKIE}={cookie}", "accept-language": accepted})
    assert chosen(headers) == language
    assert LANGUAGE.get() == "en"


def test_pages_errors_and_streams_are_in_the_language_of_the_request(console: Served) -> None:
    def get(path: str) -> str:
        return told(console.ask("GET", path, headers=ZH).text)

    assert 'lang="zh"' in console.ask("GET", "/topics", headers=ZH).text
    assert "还没有主题" in get("/topics") or "个主题" in get("/topics")
    wait_until("it is read", lambda: "投递给消费者和工具" in get("/"))
    english = told(console.get("/"))
    assert "to consumers and tools" in english, "an overview is rendered for each language"
    assert "未找到" in get("/nothing")
    assert "队列必须是整数，但输入的是“x”。" in get("/message?topic=t&queue=x&offset=0")
    with console.stream(headers=ZH) as stream:
        seen = ""
        while "投递" not in seen:
            line = stream.readline().decode()
            assert line, "the stream ended"
            seen += line


def test_the_switch_changes_the_language_of_every_page(
    console: Served, shared_cluster: Cluster
) -> None:
    shared_cluster.create_topic("switched", queues=2)
    with chromium() as one, opened(one, SIZES[0], "light") as (page, errors):
        page.goto(f"{console.url}/topics/switched")
        assert page.inner_text("main h2") == "Messages per second"
        with page.expect_navigation():
            page.click("button[data-language=zh]")
        assert page.inner_text("main h2") == "每秒消息数"
        page.click("th button:text-is('队列')")  # a table with all its rows is sorted here
        cells = page.locator("td:has(a[href*='by=offset'])").all_inner_texts()
        assert cells == ["1", "0"]
        page.click("nav a[href='/groups']")
        page.wait_for_selector("h1:text('消费组')")
        assert violations(page) == []
        with page.expect_navigation():
            page.click("button[data-language=en]")
        assert page.inner_text("h1") == "Groups"
        assert errors == []
