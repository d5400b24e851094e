"""Descriptor sets that a browser uploads: what is refused, who sees the types, how long."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from google.protobuf.descriptor_pb2 import FileDescriptorProto, FileDescriptorSet
from grpc_tools import protoc
from hypothesis import given, settings
from hypothesis import strategies as st
from starlette.datastructures import Headers
from starlette.exceptions import HTTPException

import cometmq
from cometmq.console.bodies import SHOWN_MAX
from cometmq.console.body_types import KEPT_MAX, KEPT_S, UPLOAD_BYTES_MAX, BodyTypes
from cometmq.console.descriptors import Descriptors, built
from cometmq.console.security import FILE_FORM_FIELDS_MAX, FORM_BYTES_MAX
from cometmq.console.views import Form, parse_file_form
from cometmq.operations.errors import CliError
from cometmq.tests.console.browser import SIZES, chromium, opened, press, shown, violations
from cometmq.tests.console.served import Answer, Served, serve, told
from cometmq.tests.console.test_protobuf import FIELD, order_body, order_file
from cometmq.tests.harness.cluster import Cluster

PAGE = "/message?topic=binary&queue=0&offset=0"
PLACE = {"topic": "binary", "broker": "", "queue": "0", "offset": "0"}
PROTO = """syntax = "proto3";
package shop;
import "google/protobuf/timestamp.proto";
message Order {
  int64 number = 1;
  string customer = 2;
  google.protobuf.Timestamp at = 3;
  message Line { string sku = 1; }
}
"""


class Steady:
    """A monotonic clock that a test moves."""

    def __init__(self) -> None:
        self.s = 0

    def ns(self) -> int:
        return self.s * 1_000_000_000


def set_of(*files: FileDescriptorProto) -> bytes:
    return FileDescriptorSet(file=files).SerializeToString()


def types_of(*names: str, package: str = "shop") -> FileDescriptorProto:
    file = FileDescriptorProto(name=f"{package}.proto", package=package, syntax="proto3")
    for name in names:
        file.message_type.add(name=name)
    return file


def chain(length: int) -> bytes:
    """Return files that each import the next."""
    files = [FileDescriptorProto(name=f"{n}.proto") for n in range(length)]
    for n, file in enumerate(files[:-1]):
        file.dependency.append(f"{n + 1}.proto")
    files[0].message_type.add(name="M")
    return set_of(*files)


def cycle() -> bytes:
    first, second = types_of("A", package="a"), types_of("B", package="b")
    first.dependency.append("b.proto")
    second.dependency.append("a.proto")
    return set_of(first, second)


def lacking() -> bytes:
    file = order_file()
    file.dependency.append("other.proto")
    return set_of(file)


def deep(depth: int, length: int) -> bytes:
    """Return types inside one another, whose full names are long."""
    file = FileDescriptorProto(name="deep.proto", package="p")
    one = file.message_type.add(name="N" * length)
    for _ in range(depth):
        one = one.nested_type.add(name="N" * length)
    return set_of(file)


@pytest.mark.parametrize(
    ("data", "sentence"),
    [
        pytest.param(b"", "The file is empty", id="empty"),
        pytest.param(b"\xff\xff", r"x\.desc is not a descriptor set", id="garbage"),
        pytest.param(b"message Order {}", "is not a descriptor set", id="source"),
        pytest.param(set_of(order_file())[:-3], "is not a descriptor set", id="cut"),
        pytest.param(b"x" * (UPLOAD_BYTES_MAX + 1), "larger than 512 KiB", id="large"),
        pytest.param(set_of(types_of()), "has no message type", id="no types"),
        pytest.param(
            lacking(), r"No descriptor set has other\.proto.*--include_imports", id="lack"
        ),
        pytest.param(cycle(), "are not consistent", id="cycle"),
        pytest.param(set_of(types_of("A", "A")), "are not consistent", id="twice"),
        pytest.param(set_of(types_of("A b")), "are not consistent", id="name"),
        pytest.param(chain(3_000), "nested too deeply", id="chain"),
        pytest.param(
            set_of(types_of(*(f"M{n}" for n in range(5_001)))), "more than 5,000", id="types"
        ),
        pytest.param(deep(8, 100), "more than 512 characters", id="nested names"),
        pytest.param(set_of(types_of("M", package="p" * 600)), "more than 512", id="package"),
    ],
)
def test_a_set_that_cannot_be_used_is_refused_in_words(data: bytes, sentence: str) -> None:
    types = BodyTypes(Descriptors(), Steady().ns)
    with pytest.raises(CliError, match=sentence) as refused:
        types.keep("", "x.desc", data)
    assert len(str(refused.value)) < 500


def test_each_browser_has_its_own_types_beside_those_of_the_operator() -> None:
    types = BodyTypes(built([types_of("Shared")]), Steady().ns)
    one = types.keep("", "one.desc", set_of(order_file()))
    two = types.keep("", "two.desc", set_of(types_of("Other")))
    offered = types.offered(one, "shop.Order", order_body())
    assert offered.names == ["shop.Order", "shop.Order.Line", "shop.Shared"]
    assert offered.decoded is not None
    assert '"17"' in offered.decoded.text
    assert types.offered(two).names == ["shop.Other", "shop.Shared"]
    assert "no message type" in types.offered(two, "shop.Order", order_body()).refusal
    for stranger in ("", "x", two[:-1]):
        assert types.offered(stranger).names == ["shop.Shared"]
    again = types.keep(one, "one.desc", set_of(types_of("New")))
    assert again != one
    assert types.offered(one).kept is None, "the next set has replaced it"
    types.forget(again)
    assert types.offered(again).kept is None


def test_a_full_console_refuses_a_set_until_one_is_unused_for_an_hour() -> None:
    clock = Steady()
    types = BodyTypes(Descriptors(), clock.ns)
    keys = [types.keep("", "x", set_of(types_of("M"))) for _ in range(KEPT_MAX)]
    with pytest.raises(CliError, match="keeps at most 32 uploaded descriptor sets"):
        types.keep("", "x", set_of(types_of("M")))
    keys[0] = types.keep(keys[0], "x", set_of(types_of("M")))  # the browser's next set has a place
    clock.s = KEPT_S - 1
    assert types.offered(keys[0]).kept is not None
    clock.s = KEPT_S
    types.keep("", "x", set_of(types_of("M")))
    assert types.offered(keys[0]).kept is not None, "it was used one second ago"
    assert types.offered(keys[1]).kept is None


def test_the_text_of_a_deeply_nested_body_is_bounded() -> None:
    file = types_of("M")
    nested = file.message_type[0].field.add(name="m", number=1, label=FIELD.LABEL_REPEATED)
    nested.type, nested.type_name = FIELD.TYPE_MESSAGE, ".shop.M"
    body = b"\x0a\x00" * 20_000
    for _ in range(90):
        size = len(body)
        body = bytes([0x0A, size & 127 | 128, size >> 7 & 127 | 128, size >> 14]) + body
    found = built([file]).decode("shop.M", body)
    assert (len(found.text), found.is_cut) == (SHOWN_MAX, True)


@pytest.mark.parametrize("name", ["Timestamp", "Any", "Struct", "ListValue", "Duration", "Value"])
@pytest.mark.parametrize("body", [b"", b"\x0a\x01x", b"\x08\x01", b"\x12\x00"])
def test_another_definition_of_a_type_of_protobuf_is_shown_or_refused(
    name: str, body: bytes
) -> None:
    file = types_of(name, package="google.protobuf")
    for number, kind in ((1, FIELD.TYPE_BYTES), (2, FIELD.TYPE_STRING)):
        file.message_type[0].field.add(name=f"f{number}", number=number, type=kind, label=1)
    try:
        built([file]).decode(f"google.protobuf.{name}", body)
    except CliError as refused:
        assert "google.protobuf" in str(refused)


def form(file: bytes, name: str = "shop.desc", **fields: str) -> bytes:
    """Return a form as a browser sends it."""
    parts = [f'name="{key}"\r\n\r\n{value}'.encode() for key, value in fields.items()]
    parts.append(f'name="file"; filename="{name}"\r\n\r\n'.encode() + file)
    head = b"--limit\r\nContent-Disposition: form-data; "
    return b"".join(head + part + b"\r\n" for part in parts) + b"--limit--\r\n"


KIND = "multipart/form-data; boundary=limit"


async def read(body: bytes, kind: bytes = KIND.encode()) -> Form:
    """Parse a form as the console does."""
    return await parse_file_form(Headers(raw=[(b"content-type", kind)]), bytearray(body))


async def test_a_form_with_a_file_keeps_every_byte_of_it() -> None:
    data = bytes(range(256)) + b"\r\n--limi\r\n\r\n--\r\n"
    found = await read(form(data, "b\u00e9.desc", a="1", b=""))
    assert found == {"a": "1", "b": ""}
    assert [(name, one.filename) for name, one in found.files.items()] == [("file", "b\u00e9.desc")]
    assert found.files["file"].file.read() == data


@settings(deadline=None)
@given(
    st.text(max_size=40).map(lambda text: f"multipart/form-data; {text}") | st.just(KIND),
    st.lists(
        st.sampled_from([b"--limit", b"\r\n", b"--", b'Content-Disposition: form-data; name="a"'])
        | st.sampled_from([b"; filename*=utf-8''%ff", b"\r\n\r\n", b'; filename="x\\', b"Content-"])
        | st.binary(max_size=8),
        max_size=30,
    ).map(b"".join),
)
def test_a_form_is_parsed_or_refused(kind: str, body: bytes) -> None:
    try:
        found = asyncio.run(read(body, kind.encode()))
    except HTTPException as refused:
        assert refused.status_code == 400
        return
    assert len(found) + len(found.files) <= FILE_FORM_FIELDS_MAX + 1


@pytest.mark.parametrize(
    "body",
    [
        pytest.param(form(b"", **{f"f{n}": "" for n in range(16)}), id="fields"),
        pytest.param(form(b"", a="x" * 5_000), id="a large field"),
        pytest.param(form(b"")[: -len("--\r\n")], id="no end"),
        pytest.param(form(b"").removesuffix(b"--limit--\r\n") + form(b""), id="two files"),
        pytest.param(form(b"", "x" * 5_000), id="a long name"),
    ],
)
async def test_a_form_with_a_file_is_bounded(body: bytes) -> None:
    with pytest.raises(HTTPException, match="malformed"):
        await read(body)


async def test_other_requests_go_on_while_a_hostile_form_is_parsed() -> None:
    """Lines that are like a boundary are the slowest: 1 MiB of them takes 0.3 s."""
    line = b"\r\n--limitX"
    body = form(line * ((FORM_BYTES_MAX - 1_000) // len(line)))
    task = asyncio.create_task(read(body))
    longest_s = 0.0
    while not task.done():
        before_s = time.thread_time()  # not the time in which other processes run
        await asyncio.sleep(0)
        longest_s = max(longest_s, time.thread_time() - before_s)
    assert len((await task).files["file"].file.read()) > FORM_BYTES_MAX / 2
    assert longest_s < 0.05


@pytest.fixture(scope="module")
def reader(shared_cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """Serve a read-only console with an order in the topic `binary`."""
    shared_cluster.create_topic("binary", queues=1)
    with cometmq.sync.Producer(shared_cluster.endpoints, topics=["binary"]) as producer:
        producer.send("binary", order_body())
    with serve(tmp_path_factory.mktemp("reader"), shared_cluster.endpoints) as found:
        yield found


@pytest.fixture(scope="module")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Compile `shop.proto` with protoc."""
    folder = tmp_path_factory.mktemp("shop")
    (folder / "shop.proto").write_text(PROTO)
    target = folder / "shop.desc"
    command = ["protoc", f"-I{folder}", "--include_imports", f"--descriptor_set_out={target}"]
    library = Path(protoc.__file__).parent / "_proto"
    assert protoc.main([*command, f"-I{library}", str(folder / "shop.proto")]) == 0
    return target


def send(
    console: Served, data: bytes, headers: dict[str, str] | None = None, **more: str
) -> Answer:
    """Upload a file with the token of the page."""
    page = console.get(f"{PAGE}&as=protobuf")
    token = page.split('name="token" value="')[1].split('"')[0]
    body = form(data, **{**PLACE, "token": token, **more})
    return console.ask("POST", "/message/types", body, {"Content-Type": KIND, **(headers or {})})


def test_a_read_only_console_takes_a_set_for_the_browser_that_uploads_it(
    reader: Served, compiled: Path
) -> None:
    sent = send(reader, compiled.read_bytes())
    assert (sent.status, sent.headers["location"]) == (
        303,
        "/message?topic=binary&queue=0&offset=0&as=protobuf",
    )
    cookie = sent.headers["set-cookie"]
    assert "HttpOnly" in cookie
    assert "SameSite=lax" in cookie
    own = {"Cookie": cookie.split(";")[0]}
    page = f"{PAGE}&as=protobuf&type=shop.Order"
    assert '"number": "17"' in told(reader.ask("GET", page, headers=own).text)
    assert "have no message type 'shop.Order'" in told(reader.get(page)), "another browser"
    next_one = send(reader, set_of(types_of("Other")), own)
    assert next_one.headers["set-cookie"].split(";")[0] != own["Cookie"]
    assert "have no message type" in told(reader.ask("GET", page, headers=own).text)


def test_an_upload_needs_the_token_and_an_own_origin(reader: Served, compiled: Path) -> None:
    data = compiled.read_bytes()
    for headers, fields in (
        ({}, {"token": "x"}),
        ({"Origin": "http://other"}, {}),
        ({"Sec-Fetch-Site": "cross-site"}, {}),
    ):
        refused = send(reader, data, headers, **fields)
        assert (refused.status, "set-cookie" in refused.headers) == (403, False)
    assert reader.ask("POST", "/message/types/forget", "token=x").status == 403


def test_a_refused_upload_shows_the_reason_on_the_page_of_the_message(reader: Served) -> None:
    refused = send(reader, b"", name="<b>.desc")
    assert (refused.status, "The file is empty." in told(refused.text)) == (400, True)
    refused = send(reader, lacking())
    assert "other.proto, which is imported" in told(refused.text)
    assert "Your own message types" in told(refused.text)
    for length, status in ((UPLOAD_BYTES_MAX + 1, 400), (3 << 20, 413)):
        large = send(reader, b"x" * length)
        assert (large.status, "larger than 512 KiB" in told(large.text)) == (status, True)
    for body in (b"", b"token=x", form(b"")[:-9]):
        answer = reader.ask("POST", "/message/types", body, {"Content-Type": KIND})
        assert (answer.status, "is malformed" in answer.text) == (400, True)


@pytest.mark.parametrize("size", SIZES, ids=["wide", "narrow"])
def test_the_keyboard_uploads_a_set_and_decodes_a_body(
    reader: Served, compiled: Path, size: tuple[int, int]
) -> None:
    colours = "light" if size == SIZES[0] else "dark"
    with chromium() as browser, opened(browser, size, colours) as (page, errors):

        def go_to(selector: str) -> None:
            for _ in range(60):
                page.keyboard.press("Tab")
                if page.evaluate("s => document.activeElement.matches(s)", selector):
                    return
            raise AssertionError(f"Tab does not reach {selector}")

        page.on("filechooser", lambda _: None)  # from now on there is no window for the file
        page.goto(reader.url + PAGE)
        press(page, "Protobuf")
        shown(page, "Only this browser uses it.")
        shown(page, "The console knows no message type: upload a descriptor set")
        assert violations(page) == []
        go_to("input[type=file]")
        with page.expect_file_chooser() as chosen:
            page.keyboard.press("Enter")
        chosen.value.set_files(str(compiled))
        go_to("form[enctype] button")
        page.keyboard.press("Enter")
        shown(page, "shop.desc")
        shown(page, "Choose one of 3 message types")
        options = page.locator("datalist option").evaluate_all("all => all.map(o => o.value)")
        assert options == ["google.protobuf.Timestamp", "shop.Order", "shop.Order.Line"]
        go_to("input[name=type]")
        page.keyboard.type("shop.Order")
        page.keyboard.press("Enter")
        page.wait_for_selector('pre.body:has-text(\'"number": "17"\')')
        assert json.loads(page.inner_text("pre.body"))["customer"] == "<b>\u00e9</b>"
        assert not page.evaluate("document.documentElement.scrollWidth > innerWidth")
        assert violations(page) == []
        press(page, "Forget")
        shown(page, "Descriptor set, at most 512 KiB")
        assert page.locator("input[name=type]").count() == 0
        assert errors == []


def test_a_large_file_is_refused_before_it_is_sent(reader: Served, tmp_path: Path) -> None:
    large, small = tmp_path / "large.desc", tmp_path / "small.desc"
    large.write_bytes(b"x" * (UPLOAD_BYTES_MAX + 1))
    small.write_bytes(set_of(types_of("Only")))
    with chromium() as browser, opened(browser, SIZES[0], "light") as (page, errors):
        page.goto(f"{reader.url}{PAGE}&as=protobuf")
        page.set_input_files("input[type=file]", str(large))
        reason = page.locator("input[type=file]").evaluate("one => one.validationMessage")
        assert "larger than 512 KiB" in reason
        page.click("button:text-is('Upload')")
        page.set_input_files("input[type=file]", str(small))
        press(page, "Upload")
        assert page.input_value("input[name=type]") == "shop.Only", "the only type is filled in"
        assert errors == []


def test_an_upload_works_without_scripts(reader: Served, compiled: Path, tmp_path: Path) -> None:
    large = tmp_path / "large.desc"
    large.write_bytes(b"x" * (4 << 20))
    with chromium() as browser:
        context = browser.new_context(java_script_enabled=False)
        page = context.new_page()
        page.goto(f"{reader.url}{PAGE}&as=protobuf")
        page.set_input_files("input[type=file]", str(large))
        press(page, "Upload")
        shown(page, "The file is larger than 512 KiB.")
        page.goto(f"{reader.url}{PAGE}&as=protobuf")
        page.set_input_files("input[type=file]", str(compiled))
        press(page, "Upload")
        shown(page, "Choose one of 3 message types")
        context.close()
