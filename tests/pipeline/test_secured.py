"""Commands of the pipeline, source and sink on a broker that requires TLS and signatures."""

from __future__ import annotations

import asyncio
import json
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import click.testing
import pytest

from cometmq.cli.root import cli
from cometmq.client.transport.tls import Tls
from cometmq.nodes.tls_config import TlsConfig
from cometmq.pipeline.archive.gate import get_watermark
from cometmq.pipeline.archive.planning import snapshot
from cometmq.pipeline.errors import OptionError, PipelineError
from cometmq.pipeline.source.options import Access, parse
from cometmq.tests.broker.live import running, settings
from cometmq.tests.harness.cluster import wait_until
from cometmq.tests.harness.tls_cluster import NODE_NAME, dev_ca
from cometmq.tests.pipeline.written import sent, write_store

pytestmark = pytest.mark.timeout(600)
KEYS = {"accessKey": "admin", "secretKey": "admin-secret"}
COUNT = 60


def command(*words: str) -> Any:
    """Run `cometmq`; return its document."""
    result = click.testing.CliRunner().invoke(cli, [*words, "-o", "json"], standalone_mode=False)
    if result.exception is not None:
        raise result.exception
    return json.loads(result.stdout)


async def test_jobs_source_and_sink_call_brokers_with_tls_and_signatures(
    spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    dev_ca(tmp_path / "tls", "b0")
    ca, pem, key = (str(tmp_path / "tls" / name) for name in ("ca.pem", "b0.pem", "b0.key"))
    tls = TlsConfig(tls_mode="enforcing", tls_certificate=pem, tls_key=key, tls_ca=ca)
    chosen = settings(
        tmp_path / "broker",
        authentication_enabled=True,
        authorization_enabled=True,
        init_authentication_user='{"username":"admin","password":"admin-secret"}',
    )
    chosen = replace(chosen, ha=replace(chosen.ha, cluster_token="the-token-of-the-tests"))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COMETMQ_TLS_CA", ca)
    monkeypatch.setenv("COMETMQ_ACCESS_KEY", KEYS["accessKey"])
    monkeypatch.setenv("COMETMQ_SECRET_KEY", KEYS["secretKey"])

    @contextmanager
    def session(*_: Any) -> Any:
        yield spark

    for name in ("archive", "sending"):
        monkeypatch.setattr(f"cometmq.cli.pipeline.{name}.spark_session", session)
    async with running(chosen, tls=tls) as live:
        await asyncio.to_thread(use, spark, live.bound.client, ca, tmp_path)
        monkeypatch.delenv("COMETMQ_ACCESS_KEY")
        monkeypatch.delenv("COMETMQ_SECRET_KEY")
        with pytest.raises(PipelineError, match="username cannot be null"):
            await asyncio.to_thread(archive, live.bound.client, tmp_path)


def archive(at: str, folder: Path) -> Any:
    """Archive the broker's log and set its watermark."""
    store, out = str(folder / "broker"), str(folder / "archive")
    return command("pipeline", "archive", store, out, "--live", "--gate", at)


def use(spark: Any, at: str, ca: str, folder: Path) -> None:
    """Write, archive, replay and send dead letters again; count the messages."""
    command("topic", "create", "orders", "--endpoint", at)
    options = {"endpoints": at, **KEYS, "tls": "true", "tlsCa": ca, "tlsServerName": NODE_NAME}
    rows = [(f"order {number}",) for number in range(COUNT)]
    sink = spark.createDataFrame(rows, ["body"]).write.format("rocketmq").mode("append")
    sink.options(**options, topic="orders").save()
    roots = Path(ca).read_bytes()
    access = Access(at, KEYS["accessKey"], KEYS["secretKey"], tls=Tls(roots, name=NODE_NAME))
    # What is confirmed stands in the store a moment later.
    store, end = str(folder / "broker"), get_watermark(access).log_end
    wait_until("the files say that all is confirmed", lambda: snapshot(store).end >= end)
    report = archive(at, folder)
    assert report["watermark"] > 0
    again = ("--topic", "orders", "--to", "orders", "--endpoint", at)
    replayed = command("pipeline", "replay", "--archive", str(folder / "archive"), *again)
    assert replayed["sent"] == COUNT
    letters = [sent("%DLQ%billing", number, RETRY_TOPIC="orders") for number in range(5)]
    dead = str(write_store(folder / "letters", letters))
    resent = command("pipeline", "dlq", dead, "--resend", "--yes", "--endpoint", at)
    assert resent["sent"] == 5
    source = spark.read.format("rocketmq").options(**options, subscribe="orders")
    assert source.load().count() == 2 * COUNT + 5


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"tlsCa": "ca.pem"}, "tlsCa requires tls=true"),
        ({"tls": "true", "tlsCa": "missing.pem"}, "tlsCa: cannot read missing.pem"),
        ({"tls": "true", "tlsKey": __file__}, "both tlsCertificate and tlsKey"),
        ({"tls": "yes"}, "tls must be true or false"),
    ],
)
def test_contradictory_options_of_tls_are_refused(options: dict[str, str], sentence: str) -> None:
    with pytest.raises(OptionError, match=sentence):
        parse({"endpoints": "127.0.0.1:1", **options})
