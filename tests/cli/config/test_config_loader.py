"""Precedence, origins, types, nearest keys: what the loader promises of every configuration."""

from dataclasses import dataclass, field, fields
from enum import StrEnum
from pathlib import Path
from typing import Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cometmq.cli.config import properties
from cometmq.cli.config.loader import Loaded, load, schema
from cometmq.cli.config.sources import broker_owners, namesrv_owners
from cometmq.operations.errors import CliError, Exit


class Colour(StrEnum):
    RED = "RED"
    BLUE = "BLUE"


@dataclass(frozen=True)
class First:
    flush_disk_type: Literal["SYNC_FLUSH", "ASYNC_FLUSH"] = field(
        default="ASYNC_FLUSH", metadata={"help": "h"}
    )
    mapped_file_size: int = field(default=1024, metadata={"help": "h", "unit": "bytes"})
    broker_ip1: str = field(default="127.0.0.1", metadata={"help": "h", "key": "brokerIP1"})
    enabled: bool = field(default=False, metadata={"help": "h"})
    ratio: float = field(default=0.5, metadata={"help": "h"})
    share: int = field(default=75, metadata={"help": "h", "unit": "%"})
    colour: Colour = field(default=Colour.RED, metadata={"help": "h"})
    cluster_token: str = field(default="", metadata={"help": "h"})

    def __post_init__(self) -> None:
        if self.mapped_file_size < 1:
            raise ValueError("mappedFileSize must be at least 1.")


@dataclass(frozen=True)
class Second:
    cluster_token: str = field(default="", metadata={"help": "h"})


def load_text(tmp_path: Path, text: str, **more: object) -> Loaded:
    path = tmp_path / "broker.conf"
    path.write_text(text, encoding="utf-8")
    return load([First, Second], file=path, **{"environment": {}, **more})  # type: ignore[arg-type]


def test_flag_beats_environment_beats_file_beats_default(tmp_path: Path) -> None:
    text = "mappedFileSize=2\nenabled=true\nratio=0.25\n"
    environment = {"COMETMQ_MAPPED_FILE_SIZE": "3", "COMETMQ_ENABLED": "FALSE"}
    flags = {"mapped_file_size": "4"}
    loaded = load_text(tmp_path, text, environment=environment, flags=flags)
    assert loaded.config(First) == First(mapped_file_size=4, enabled=False, ratio=0.25)
    origins = {key: value.origin for key, value in loaded.values.items()}
    assert origins["mappedFileSize"] == "flag --mapped-file-size"
    assert origins["enabled"] == "environment COMETMQ_ENABLED"
    assert origins["ratio"] == f"file {tmp_path}/broker.conf:3"
    assert origins["flushDiskType"] == "default"


def test_a_shared_field_is_one_setting_and_is_hidden_when_shown(tmp_path: Path) -> None:
    loaded = load_text(tmp_path, "clusterToken=secret\n")
    assert loaded.config(First).cluster_token == "secret"
    assert loaded.config(Second).cluster_token == "secret"
    assert "secret" not in loaded.values["clusterToken"].shown


def test_a_secret_is_read_from_the_file_that_its_variable_names(tmp_path: Path) -> None:
    (tmp_path / "token").write_text("secret\n")
    named = {"COMETMQ_CLUSTER_TOKEN_FILE": str(tmp_path / "token")}
    loaded = load([First], environment=named)
    assert loaded.config(First).cluster_token == "secret"
    assert not loaded.warnings
    with pytest.raises(CliError, match="COMETMQ_CLUSTER_TOKEN or COMETMQ_CLUSTER_TOKEN_FILE"):
        load([First], environment={**named, "COMETMQ_CLUSTER_TOKEN": "other"})
    with pytest.raises(CliError, match="none: No such file or directory"):
        load([First], environment={"COMETMQ_CLUSTER_TOKEN_FILE": "none"})


def test_only_secrets_are_read_from_files_and_only_those_of_the_process(tmp_path: Path) -> None:
    other = load([First], environment={"COMETMQ_RATIO_FILE": "none"})
    assert "unknown setting 'COMETMQ_RATIO_FILE'" in other.warnings[0]
    foreign = {"COMETMQ_INIT_AUTHENTICATION_USER_FILE": "none"}
    assert not load(namesrv_owners(), environment=foreign, elsewhere=broker_owners()).warnings


def test_an_unknown_key_is_a_warning_with_the_nearest_one(tmp_path: Path) -> None:
    loaded = load_text(tmp_path, "flushDiskTyp=SYNC_FLUSH\n")
    assert len(loaded.warnings) == 1
    assert "did you mean 'flushDiskType'?" in loaded.warnings[0]


def test_an_unknown_key_is_an_error_when_strict(tmp_path: Path) -> None:
    with pytest.raises(CliError, match="flushDiskTyp") as failure:
        load_text(tmp_path, "flushDiskTyp=SYNC_FLUSH\n", strict=True)
    assert failure.value.code == Exit.USAGE


def test_the_switch_of_the_native_crate_is_not_a_setting(tmp_path: Path) -> None:
    loaded = load_text(tmp_path, "", environment={"COMETMQ_NATIVE": "off"})
    assert loaded.warnings == ()


def test_an_unknown_variable_is_a_warning_too(tmp_path: Path) -> None:
    loaded = load_text(tmp_path, "", environment={"COMETMQ_ENABLE": "true", "HOME": "/"})
    assert "did you mean 'COMETMQ_ENABLED'?" in loaded.warnings[0]


def test_a_known_key_that_is_not_used_is_a_notice(tmp_path: Path) -> None:
    loaded = load_text(tmp_path, "listenPort=10911\n", strict=True)
    assert loaded.warnings == ()
    assert "'listenPort' is ignored" in loaded.notices[0]


def test_a_port_of_classic_clients_that_does_not_open_is_a_warning(tmp_path: Path) -> None:
    file = tmp_path / "broker.conf"
    for more, warned in (("", True), ("remotingListenPort=10911\n", False)):
        file.write_text(f"listenPort=10911\n{more}")
        loaded = load(broker_owners(), file=file, environment={}, strict=True)
        assert any("set remotingListenPort" in text for text in loaded.warnings) is warned


def test_a_protecting_key_that_is_off_is_accepted(tmp_path: Path) -> None:
    text = "aclEnable=false\nenableDLegerCommitLog=false\nbrokerPermission=6\ninSyncReplicas=1\n"
    assert load_text(tmp_path, text, strict=True).warnings == ()


def test_a_setting_is_not_taken_for_another_that_is_only_similar(tmp_path: Path) -> None:
    loaded = load_text(tmp_path, "brokerIP3Name=x\n")
    assert "did you mean" not in loaded.warnings[0]


@pytest.mark.parametrize(
    ("line", "sentence"),
    [
        ("mappedFileSize=1k", "mappedFileSize must be a whole number of bytes, but is '1k'"),
        ("enabled=yes", "enabled must be true or false, but is 'yes'. Write true."),
        ("mappedFileSize=4194304L", "Write 4194304."),
        ("mappedFileSize=1024*1024*1024", "Write 1073741824."),
        ("mappedFileSize=0  #0: master", "A comment needs a line of its own."),
        ("share=0.85", "Write 85."),
        ("share=0.85f", "Write 85."),
        ("share=85%", "Write 85."),
        ("mappedFileSize=1G", "Write 1073741824."),
        ("mappedFileSize=4 mb", "Write 4194304."),
        ('enabled="true"', "Write true, without quotes."),
        ("flushDiskType=sync_flush", "Write SYNC_FLUSH."),
        ("flushDiskType=Async", "Write ASYNC_FLUSH."),
        ("tls.server.mode=enforcing", "set tlsMode=enforcing"),
        ("useTLS=true", "set tlsMode=enforcing"),
        ("aclEnable=true", "aclEnable=true is not supported: the ACL of RocketMQ 4"),
        ("enableDLegerCommitLog=true", "set enableControllerMode=true"),
        ("inSyncReplicas=2", "set minInSyncReplicas"),
        ("brokerPermission=4", "set the permission of each topic"),
        ("ratio=much", "ratio must be a number"),
        ("colour=GREEN", "colour must be one of RED, BLUE"),
        ("flushDiskType=sync", "flushDiskType must be one of SYNC_FLUSH, ASYNC_FLUSH"),
        ("mappedFileSize=0", "mappedFileSize must be at least 1"),
    ],
)
def test_an_invalid_value_is_refused_with_its_line(
    tmp_path: Path, line: str, sentence: str
) -> None:
    with pytest.raises(CliError) as failure:
        load_text(tmp_path, f"# a comment\n{line}\n")
    assert sentence in str(failure.value)
    assert "broker.conf:2" in str(failure.value)
    assert failure.value.code == Exit.USAGE


def test_a_missing_file_is_an_error_sentence(tmp_path: Path) -> None:
    with pytest.raises(CliError, match=r"Cannot read .*No such file"):
        load([First], file=tmp_path / "none.conf")


SETTINGS = st.fixed_dictionaries(
    {},
    optional={
        "flushDiskType": st.sampled_from(["SYNC_FLUSH", "ASYNC_FLUSH"]),
        "mappedFileSize": st.integers(1, 1 << 40).map(str),
        "brokerIP1": st.text(max_size=20).map(str.strip),
        "enabled": st.sampled_from(["true", "false"]),
        "ratio": st.floats(allow_nan=False).map(str),
        "colour": st.sampled_from(["RED", "BLUE"]),
    },
)


@given(SETTINGS)
def test_values_written_to_a_file_are_loaded_back(
    tmp_path_factory: pytest.TempPathFactory, wanted: dict[str, str]
) -> None:
    path = tmp_path_factory.mktemp("conf") / "broker.conf"
    path.write_text(properties.dump(wanted), encoding="utf-8")
    loaded = load([First], file=path, environment={})
    assert {k: v.shown for k, v in loaded.values.items() if v.origin != "default"} == wanted


def real_owners() -> list[type]:
    from cometmq.broker.base.config import BrokerConfig
    from cometmq.front.config import DoorConfig
    from cometmq.ha.config import HaConfig
    from cometmq.nameserver.config import NameserverConfig
    from cometmq.store.config.store_config import StoreConfig

    return [BrokerConfig, StoreConfig, HaConfig, DoorConfig, NameserverConfig]


def test_every_real_setting_has_a_help_and_a_type_that_can_be_written() -> None:
    for owner in real_owners():
        for setting in schema([owner]).values():
            assert setting.help, f"{owner.__name__}.{setting.field} has no help"
        loaded = load([owner], environment={}, flags=_defaults_as_text(owner))
        assert loaded.config(owner) == owner()


def _defaults_as_text(owner: type) -> dict[str, str]:
    loaded = load([owner], environment={})
    shown = {value.setting.field: value.shown for value in loaded.values.values()}
    return {field.name: shown[field.name] for field in fields(owner)}


def test_a_broker_setting_is_not_unknown_to_the_nameserver(tmp_path: Path) -> None:
    """`single -c broker.conf` reads one file for both."""
    file = tmp_path / "broker.conf"
    file.write_text("brokerName=a\nfileReservedTime=48\ndeleteWhen=04\n")
    loaded = load(
        namesrv_owners(), file=file, environment={}, elsewhere=broker_owners(), strict=True
    )
    assert not loaded.warnings
    assert not loaded.notices
    assert len(loaded.elsewhere) == 3


def test_a_file_of_the_apache_broker_is_accepted(tmp_path: Path) -> None:
    path = tmp_path / "broker.conf"
    path.write_text(
        "brokerClusterName = DefaultCluster\nbrokerName = broker-a\nbrokerId = 0\n"
        "deleteWhen = 04\nfileReservedTime = 48\nbrokerRole = ASYNC_MASTER\n"
        "flushDiskType = ASYNC_FLUSH\nlistenPort=10911\nnamesrvAddr=127.0.0.1:9876\n"
        "storePathRootDir=/data/store\nautoCreateTopicEnable=false\n",
        encoding="utf-8",
    )
    loaded = load(real_owners()[:4], file=path, environment={}, strict=True)
    (sentence,) = loaded.warnings
    assert "set remotingListenPort" in sentence
    assert loaded.values["storePathRootDir"].value == "/data/store"
