"""Words, pages of lists, forms and the rules for requests."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest

import cometmq
from cometmq.cli.root import cli
from cometmq.console.inputs import whole
from cometmq.console.pages.paging import PAGE_ROWS, page_of
from cometmq.console.pages.topics import draft_of, topic_rows
from cometmq.console.security import host_name, is_own_page, is_token
from cometmq.console.views import Form, link, quoted
from cometmq.operations import words
from cometmq.operations.errors import CliError
from cometmq.proto import v1

FOLDER = Path(cometmq.__file__).parent / "console"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (words.number(1_234_567), "1,234,567"),
        (words.short(0), "0"),
        (words.short(12_345), "12.3k"),
        (words.size(1536), "1.5 KiB"),
        (words.size(3 << 30), "3.0 GiB"),
        (words.moment(0), "–"),
        (words.moment(1_700_000_000_123), "2023-11-14 22:13:20.123"),
        (words.moment(10**18), str(10**18)),
        (words.span(0.35), "350 µs"),
        (words.span(3_400), "3.4 s"),
        (words.span(7_200_000), "2 h"),
        (words.counted(1, "topic"), "1 topic"),
        (words.counted(2_000, "topic"), "2,000 topics"),
    ],
)
def test_values_are_written_for_people(text: str, expected: str) -> None:
    assert text == expected


def test_a_search_needs_every_word_and_ignores_case() -> None:
    names = ["Orders-EU", "orders-us", "bills"]
    found = page_of(names, "ORDERS eu", "", str)
    assert (found.items, found.found, found.total) == (["Orders-EU"], 1, 3)


@pytest.mark.parametrize(("page", "first"), [("", 0), ("2", 50), ("99", 100), ("-1", 0), ("x", 0)])
def test_a_page_outside_the_list_is_the_nearest_one(page: str, first: int) -> None:
    found = page_of([str(n) for n in range(120)], "", page, str)
    assert found.items[0] == str(first)
    assert len(found.items) <= PAGE_ROWS


@pytest.mark.parametrize(
    ("header", "name"),
    [("localhost:8082", "localhost"), ("[::1]:8082", "::1"), ("EVIL.example", "evil.example")],
)
def test_the_name_of_a_host_header_has_no_port(header: str, name: str) -> None:
    assert host_name(header) == name


@pytest.mark.parametrize("header", ["", "[", ":80", "a b@[c"])
def test_a_malformed_host_header_names_no_local_host(header: str) -> None:
    assert host_name(header) not in ("localhost", "127.0.0.1", "::1")


@pytest.mark.parametrize(
    ("headers", "own"),
    [
        ({"host": "localhost:8082"}, True),
        ({"host": "localhost:8082", "origin": "http://localhost:8082"}, True),
        ({"host": "localhost:8082", "origin": "http://evil.example"}, False),
        ({"host": "localhost:8082", "origin": "null"}, False),
        ({"host": "localhost:8082", "sec-fetch-site": "cross-site"}, False),
        ({"host": "localhost:8082", "sec-fetch-site": "same-origin"}, True),
    ],
)
def test_a_form_of_another_origin_is_foreign(headers: dict[str, str], own: bool) -> None:
    assert is_own_page(headers) is own


def test_tokens_are_compared_as_text() -> None:
    assert is_token("abc", "abc")
    assert not is_token("abc", "abç")
    assert not is_token("abc", "")


def test_links_leave_out_empty_parameters_and_escape_the_rest() -> None:
    assert link("/topics", q="a&b", page="", other=None) == "/topics?q=a%26b"
    assert quoted("%DLQ%a/b") == "%25DLQ%25a%2Fb"


@pytest.mark.parametrize("text", ["", "-1", "1.5", "a", "5" * 30, "1000"])
def test_a_number_outside_its_bounds_is_refused_by_name(text: str) -> None:
    with pytest.raises(CliError, match=r"^Queues "):
        whole(text, "Queues", least=1, most=100)


def test_a_form_becomes_a_message() -> None:
    form = Form([("body", "é"), ("keys", "a  b"), ("properties", "x = 1\n\ny=2=3"), ("tag", " t ")])
    draft = draft_of("orders", form)
    assert (draft.body, draft.keys, draft.tag) == ("é".encode(), ("a", "b"), "t")
    assert draft.properties == {"x": "1", "y": "2=3"}
    with pytest.raises(CliError, match="NAME=VALUE"):
        draft_of("orders", Form([("properties", "nothing")]))


def test_topics_of_several_groups_are_one_row_that_tells_differences() -> None:
    first = v1.TopicConfig(name="b", write_queues=4, perm=6, message_type=1)
    second = v1.TopicConfig(name="b", write_queues=2, perm=4, message_type=1)
    lone = v1.TopicConfig(name="a", write_queues=1, perm=6, message_type=2)
    rows = topic_rows(
        [
            ("broker-a", [v1.ListTopicsResponse(topics=[first])]),
            ("broker-b", [v1.ListTopicsResponse(topics=[lone, second])]),
        ]
    )
    assert [(row.name, row.queues, row.brokers, row.differs) for row in rows] == [
        ("a", 1, ["broker-b"], False),
        ("b", 6, ["broker-a", "broker-b"], True),
    ]


@pytest.mark.parametrize(
    "file", sorted((FOLDER / "templates").glob("*.html")), ids=lambda f: f.name
)
def test_templates_have_no_inline_code_and_escape_what_they_show(file: Path) -> None:
    text = file.read_text()
    assert not re.search(r"<script(?![^>]*\bsrc=)|\son\w+=|\sstyle=|javascript:", text), file.name
    # Rendered parts of our own are the only text that is not escaped.
    assert set(re.findall(r"([\w.]+)\s*\|\s*safe", text)) <= {"part"}


@pytest.mark.parametrize(
    "file", sorted((FOLDER / "templates").glob("*.html")), ids=lambda f: f.name
)
def test_links_of_templates_stay_in_their_cluster(file: Path) -> None:
    links = re.findall(
        r'(?<![\w-])(?:href|action|hx-get|hx-post|sse-connect)="(.{12})', file.read_text()
    )
    own = ("{{ base }}", "{{ path }}{{", "{{ trace_url", "/static/", "#")
    assert [one for one in links if not one.startswith(own)] == []


def test_the_wheel_has_every_file_of_the_console() -> None:
    project = tomllib.loads((FOLDER.parent / "pyproject.toml").read_text())
    patterns = project["tool"]["setuptools"]["package-data"]["cometmq.console"]
    files = [file for file in FOLDER.glob("*/*") if file.suffix not in (".py", ".pyc", ".po")]
    files = [file for file in files if file.is_file()]
    assert files
    for file in files:
        assert any(file.match(pattern) for pattern in patterns), file


def test_files_of_other_projects_come_with_their_licences() -> None:
    told = (FOLDER / "static" / "LICENSES.txt").read_text()
    own = {"console.css", "console.js", "icon.svg", "LICENSES.txt"}
    for file in (FOLDER / "static").iterdir():
        assert file.name in own or file.name in told


def test_a_console_for_other_machines_needs_their_host_names() -> None:
    with pytest.raises(CliError, match="--allow-host"):
        cli.main(["console", "--host", "0.0.0.0", "--port", "0"], standalone_mode=False)
