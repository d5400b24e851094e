"""Bodies of classic clients: what Apache's broker reads, with fastjson, is read as the same."""

from __future__ import annotations

import base64
import subprocess

import pytest

from cometmq.remoting.bare_json import BareJsonError, as_bool, as_enum, as_int, as_text, loads
from cometmq.tests.harness.jvm import JAVA
from cometmq.tests.interop.programs import CACHE, compiled, fetched, require
from cometmq.tests.interop.remoting.test_java_clients import HERE

KINDS = ("FIRST", "SECOND")
VERSION = "5.5.0"
#: As each field is written by some client.
VALUES = {
    "number": ("1795839709992", '"1795839709992"', "-5", '"-5"', '"5.9"', "null", "5.0", "true"),
    "truth": ("true", "false", '"true"', '"false"', "1", "0", '"1"', '"0"', "null", '"TRUE"'),
    "text": ('"a"', "5", "true", "null", '""', "'a'", '"\\u0041"', "1.5"),
    "kind": ('"FIRST"', "0", "1", '"1"', "null", '"SECOND"'),
}
#: A document with a value for `%s`.
SHAPES = ('{"%s":%s}', "{%s:%s}", "{'%s':%s}", '{"other":{"a":[1]},"%s":%s}', '{ "%s" : %s , }')
OTHERS = (
    '{"other":[1,2,],"number":1}',
    '{"other":{"a":1,},"number":1}',
    '{"other":[[1,],],"number":1}',
    '{"other":[,],"number":1}',
    '{// a\n"number":1}',
    '{"number":1/* a */,"text":"b"}',
    '{"number":1,,"text":"b"}',
    '{"a":NaN,"number":1}',
    '{"number":+1}',
    '{"number":01}',
    '{"number":0x10}',
    '{"number":1L}',
    '{"number":"1,000"}',
    '{"number":" 1"}',
    '{"number":"0"}',
    '{"number":"5."}',
    '{"number":"1e3"}',
    '{"number":"0x10"}',
    '{"truth":-1}',
    '{"truth":1.0}',
    '{"kind":"fir-st"}',
    '{"kind":" FIRST"}',
    '{"text":"a\tb\nc"}',
    '{"text":"\\x4a\\0\\v\\#\\/\\\'"}',
    '{"text":"\\q"}',
    """{'text':'a\\"b"c'}""",
    '{"t\\x65xt":"a"}',
    '{"text":"\\ud83d\\ude00"}',
    '{"number":""}',
    '{"truth":""}',
    '{"truth":"yes"}',
    '{"truth":"Y"}',
    '{"truth":2}',
    '{"kind":"THIRD"}',
    '{"kind":7}',
    '{"kind":"first"}',
    '{"NUMBER":1}',
    "{}",
    '{"unknown":1}',
    '{"number":1,"number":2}',
    '{"number":1}\n',
    '/* a */{"number":1}',
    '{"number":}',
    '{"number"',
    "[]",
)


def documents() -> list[str]:
    return [
        *(
            shape % (name, value)
            for name, values in VALUES.items()
            for value in values
            for shape in SHAPES
        ),
        *OTHERS,
    ]


def here(document: str) -> str:
    """Return the fields as they are read here."""
    try:
        found = loads(document.encode())
    except BareJsonError:
        return "refused"
    if not isinstance(found, dict):
        return "refused"
    text = as_text(found.get("text"))
    return "\t".join(
        (
            str(as_int(found.get("number")) or 0),
            str(as_bool(found.get("truth")) or False).lower(),
            "null" if text is None else f"={text}",
            as_enum(found.get("kind"), KINDS) or "null",
        )
    )


@pytest.mark.timeout(600)  # the first run fetches the client
def test_a_body_that_fastjson_reads_is_read_as_the_same() -> None:
    require("mvn", "java", "javac")
    jars = fetched(CACHE / f"classic-client-{VERSION}", HERE, f"-Dclient.version={VERSION}")
    classes = compiled(CACHE / "json-classes", jars, HERE, "Json.java")
    asked = documents()
    lines = "".join(base64.b64encode(each.encode()).decode() + "\n" for each in asked)
    command = [*JAVA, "-cp", f"{classes}:{jars}/*", "Json"]
    done = subprocess.run(command, input=lines, capture_output=True, text=True, check=True)
    apache = [base64.b64decode(line).decode() for line in done.stdout.splitlines()]
    assert len(apache) == len(asked)
    differs = [
        (document, there, here(document))
        for document, there in zip(asked, apache, strict=True)
        if there not in ("refused", here(document))
    ]
    assert not differs
    assert apache.count("refused") < len(asked) // 4
