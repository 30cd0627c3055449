"""The original's names for settings: what they mean here, and what is refused."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import msgspec
import pytest

from pravega_admin.serving.original_names import check_needed, merge_settings, read_names, translate
from pravega_admin.serving.serve import decode_path
from pravega_admin.supervisor.child_protocol import CONTROLLER, SEGMENT_STORE
from pravega_controller.config import ControllerConfig
from segstore.process.config import SegmentStoreConfig
from segstore_client.errors import UsageError

GUIDE = Path(__file__).resolve().parents[3] / "docs" / "guides" / "original-names.md"
OWN = "10.1.2.3"
COMPOSE_STORE = {
    "WAIT_FOR": "bookie1:3181,bookie2:3182,bookie3:3183",
    "TIER2_STORAGE": "FILESYSTEM",
    "NFS_MOUNT": "/mnt/tier2",
    "ZK_URL": "zookeeper:2181",
    "CONTROLLER_URL": "tcp://192.168.0.2:9090",
    "JAVA_OPTS": """
        -Dpravegaservice.service.published.host.nameOrIp=192.168.0.2
        -Dbookkeeper.ensemble.size=2
        -Dbookkeeper.ack.quorum.size=2
        -Dbookkeeper.write.quorum.size=2
        -Dwriter.flush.threshold.bytes=67108864
        -Xmx900m
        -XX:OnError="kill -9 p%"
    """,
}


def options_of(server: str, **environment: str) -> dict[str, Any]:
    return translate(server, environment, OWN).options


def test_the_originals_compose_file_means_a_store_of_a_cluster() -> None:
    found = translate(SEGMENT_STORE, COMPOSE_STORE, OWN)
    assert found.options == {
        "zookeeper": "zookeeper:2181",
        "publish": "192.168.0.2:12345",
        "replicas": "2/2/2",
        "tier2": "/mnt/tier2",
        "host": "0.0.0.0",
    }
    assert found.sources["publish"] == "pravegaservice.service.published.host.nameOrIp"
    assert "host" not in found.sources
    assert found.without_effect == ["WAIT_FOR", "writer.flush.threshold.bytes"]


def test_a_controller_of_the_originals_images() -> None:
    found = translate(
        CONTROLLER,
        {
            "ZK_URL": "zookeeper:2181",
            "CLUSTER_NAME": "prod",
            "CONTAINER_COUNT": "8",
            "REST_SERVER_PORT": "10080",
            "ZK_SESSION_TIMEOUT_MS": "20000",
            "RETENTION_FREQUENCY_MINUTES": "10",
            "CLUSTER_MIN_REBALANCE_INTERVAL": "3",
            "JAVA_OPTS": "-Dcontroller.service.rpc.listener.port=9090 -Xmx512m",
        },
        OWN,
    )
    assert found.options == {
        "zookeeper": "zookeeper:2181",
        "cluster": "prod",
        "container_count": 8,
        "port": 9090,
        "http_port": 10080,
        "published_address": OWN,
        "host": "0.0.0.0",
    }
    settings = found.settings["controller"]
    assert settings == {
        "session_seconds": 20.0,
        "retention_period_seconds": 600.0,
        "rebalance_seconds_min": 3.0,
    }
    ControllerConfig(**settings)
    assert not found.without_effect


def test_a_standalone_image_publishes_what_it_is_told() -> None:
    assert options_of("standalone", HOST_IP="192.168.0.2") == {
        "published_address": "192.168.0.2",
        "host": "0.0.0.0",
    }


def test_the_settings_of_a_store_are_those_of_its_configuration() -> None:
    text = " ".join(
        f"-D{name}={value}"
        for name, value in {
            "pravegaservice.cache.size.max": "1073741824",
            "pravegaservice.zk.connect.sessionTimeout.milliseconds": "15000",
            "pravegaservice.container.parallelStarts": "4",
            "bookkeeper.ledger.size.max": "536870912",
            "bookkeeper.connect.security.auth.pwd": "secret",
            "autoScale.cooldownInSeconds": "60",
            "autoScale.mute.time.seconds": "70",
            "autoScale.cache.expiry.seconds": "80",
        }.items()
    )
    found = translate(SEGMENT_STORE, {"JAVA_OPTS": text}, OWN).settings["segment_store"]
    found["cluster"]["zookeeper"] = "z:1"
    config = msgspec.convert(
        {"data_dir": "data", **found}, SegmentStoreConfig, dec_hook=decode_path
    )
    assert config.cache_bytes_max == 1073741824
    assert config.auto_scale.cooldown_seconds == 60
    assert (config.auto_scale.mute_seconds, config.auto_scale.expiry_seconds) == (70, 80)
    assert config.cluster is not None
    assert config.cluster.session_seconds == 15
    assert config.cluster.ledger_bytes_max == 536870912
    assert config.cluster.password == "secret"
    assert config.cluster.parallel_starts_max == 4


def test_ecs_is_s3_at_another_place() -> None:
    found = translate(
        SEGMENT_STORE,
        {
            "TIER2_STORAGE": "EXTENDEDS3",
            "EXTENDEDS3_CONFIGURI": "http://10.0.0.1:9020?identity=me%26secretKey=hidden",
            "EXTENDEDS3_BUCKET": "shared",
            "EXTENDEDS3_PREFIX": "/",
        },
        OWN,
    )
    assert found.options["tier2"] == "s3://shared/"
    assert found.options["s3_endpoint"] == "http://10.0.0.1:9020"
    assert found.environment == {"AWS_ACCESS_KEY_ID": "me", "AWS_SECRET_ACCESS_KEY": "hidden"}


def test_s3_has_amazons_place_unless_that_is_overridden() -> None:
    properties = {
        "pravegaservice.storage.impl.name": "S3",
        "s3.bucket": "shared",
        "s3.prefix": "prod",
        "s3.connect.config.region": "eu-west-1",
        "s3.connect.config.uri": "http://10.0.0.1:9000",
        "s3.connect.config.access.key": "me",
    }
    text = " ".join(f"-D{name}={value}" for name, value in properties.items())
    found = translate(SEGMENT_STORE, {"JAVA_OPTS": text}, OWN)
    assert found.options["tier2"] == "s3://shared/prod"
    assert found.options["s3_region"] == "eu-west-1"
    assert "s3_endpoint" not in found.options
    assert found.environment == {"AWS_ACCESS_KEY_ID": "me"}
    text += " -Ds3.connect.config.uri.override=true"
    assert options_of(SEGMENT_STORE, JAVA_OPTS=text)["s3_endpoint"] == "http://10.0.0.1:9000"


def test_a_store_without_a_cluster_reports_to_the_controller_that_is_named() -> None:
    assert options_of(SEGMENT_STORE, CONTROLLER_URL="tcp://c:9090,d:9090")["controller"] == "c:9090"
    assert "controller" not in options_of(SEGMENT_STORE, CONTROLLER_URL="tcp://c:1", ZK_URL="z:1")


def test_equal_values_do_not_contradict_each_other() -> None:
    assert options_of(SEGMENT_STORE, ZK_URL="z:1", BK_ZK_URL="z:1")["zookeeper"] == "z:1"


@pytest.mark.parametrize(
    ("server", "environment", "sentence"),
    [
        (SEGMENT_STORE, {"ZK_URL": "a:1", "BK_ZK_URL": "b:1"}, "ZK_URL says 'a:1', and BK_ZK_URL"),
        (
            CONTROLLER,
            {"ZK_URL": "a:1", "JAVA_OPTS": "-Dcontroller.zkURL=b:1"},
            "controller.zkURL says 'b:1', and ZK_URL 'a:1'",
        ),
        (CONTROLLER, {"TLS_ENABLED": "true"}, "TLS_ENABLED=true needs the paths of a certificate"),
        (CONTROLLER, {"TLS_PROTOCOL_VERSION": "TLSv1.1"}, "is no list of TLSv1.2 and TLSv1.3"),
        (
            CONTROLLER,
            {"AUTHORIZATION_ENABLED": "YES"},
            "ED=true needs the path of an accounts file",
        ),
        (CONTROLLER, {"TLS_ENABLED": "maybe"}, "TLS_ENABLED=maybe is neither true nor false"),
        (CONTROLLER, {"CONTAINER_COUNT": "x"}, "CONTAINER_COUNT=x is not a whole number"),
        (
            CONTROLLER,
            {"CONTROLLER_RPC_PUBLISHED_PORT": "9999"},
            "CONTROLLER_RPC_PUBLISHED_PORT says 9999, but .* which is 9090",
        ),
        (SEGMENT_STORE, {"TIER2_STORAGE": "AZURE"}, "TIER2_STORAGE=AZURE is no FILESYSTEM, HDFS"),
        (SEGMENT_STORE, {"TIER2_STORAGE": "S3"}, "TIER2_STORAGE=S3 needs the name of a bucket"),
        (
            SEGMENT_STORE,
            {"JAVA_OPTS": "-Dpravegaservice.dataLog.impl.name=INMEMORY"},
            "logs of a cluster are on bookies",
        ),
        (SEGMENT_STORE, {"JAVA_OPTS": "-Da='b"}, "JAVA_OPTS cannot be read"),
    ],
)
def test_what_cannot_be_meant_is_refused(
    server: str, environment: dict[str, str], sentence: str
) -> None:
    with pytest.raises(UsageError, match=sentence):
        translate(server, environment, OWN)


def test_what_is_switched_off_may_be_said() -> None:
    off = {"TLS_ENABLED": "false", "AUTHORIZATION_ENABLED": "0", "SECURE_ZK": "no"}
    assert translate(CONTROLLER, off, OWN).options == {"host": "0.0.0.0"}


TLS_OF_A_CONTROLLER = {
    "TLS_CERT_FILE": "/etc/server.pem",
    "TLS_KEY_FILE": "/etc/server.key",
    "TLS_PROTOCOL_VERSION": "TLSv1.2,TLSv1.3",
}


def test_a_controllers_certificate_has_its_settings() -> None:
    found = translate(CONTROLLER, {**TLS_OF_A_CONTROLLER, "TLS_ENABLED": "true"}, OWN)
    settings = found.settings["controller"]
    assert settings == {
        "tls": {
            "certificate": "/etc/server.pem",
            "key": "/etc/server.key",
            "versions": ("TLSv1.2", "TLSv1.3"),
        },
        # The original reaches segment stores as it is reached itself.
        "store_tls": True,
    }
    config = msgspec.convert(settings, ControllerConfig, dec_hook=decode_path)
    assert config.tls is not None
    assert config.tls.key == Path("/etc/server.key")
    assert found.without_effect == []


def test_certificates_have_no_effect_while_tls_is_off() -> None:
    for switch in ({}, {"TLS_ENABLED": "false"}):
        found = translate(CONTROLLER, {**TLS_OF_A_CONTROLLER, **switch}, OWN)
        assert found.settings == {}
        assert found.without_effect == []


def test_a_segment_stores_certificate_has_its_settings() -> None:
    prefix = "-Dpravegaservice.security.tls"
    options = (
        f"{prefix}.enable=true {prefix}.server.certificate.location=/a"
        f" {prefix}.protocolVersion=TLSv1.3"
        f" {prefix}.server.privateKey.location=/b {prefix}.certificate.autoReload.enable=true"
    )
    found = translate(SEGMENT_STORE, {"JAVA_OPTS": options}, OWN)
    tls = {"certificate": "/a", "key": "/b", "versions": ("TLSv1.3",)}
    assert found.settings == {"segment_store": {"tls": tls}}
    assert found.without_effect == []


def test_a_controllers_users_and_authorities_have_their_settings() -> None:
    found = translate(
        CONTROLLER,
        {
            "AUTHORIZATION_ENABLED": "true",
            "USER_PASSWORD_FILE": "/etc/passwd",
            "TOKEN_SIGNING_KEY": "hidden",
            "ACCESS_TOKEN_TTL_IN_SECONDS": "900",
            "TLS_TRUST_STORE": "/etc/ca.pem",
            "JAVA_OPTS": "-Dcontroller.segmentstore.connect.channel.tls=true",
        },
        OWN,
    )
    settings = found.settings["controller"]
    assert settings == {
        "accounts": "/etc/passwd",
        "token_seconds": 900,
        "store_tls": True,
        "store_ca": "/etc/ca.pem",
    }
    msgspec.convert(settings, ControllerConfig, dec_hook=decode_path)
    assert list(found.needed) == ["controller.token_keys"]
    assert "hidden" not in repr(found)
    assert found.without_effect == []


def test_a_segment_store_asks_controllers_by_tls() -> None:
    prefix = "-DautoScale.controller.connect.security.tls"
    options = f"{prefix}.enable=true {prefix}.truststore.location=/etc/ca.pem"
    found = translate(SEGMENT_STORE, {"JAVA_OPTS": options}, OWN)
    assert found.settings == {"segment_store": {"controller_ca": "/etc/ca.pem"}}
    assert found.needed == {}


@pytest.mark.parametrize(
    ("server", "name", "needed"),
    [
        (SEGMENT_STORE, "pravegaservice.secureZK", "segment_store.cluster.zookeeper_tls"),
        (
            SEGMENT_STORE,
            "bookkeeper.connect.security.tls.enable",
            "segment_store.cluster.bookie_tls",
        ),
        (SEGMENT_STORE, "bookkeeper.tlsEnabled", "segment_store.cluster.bookie_tls"),
        (SEGMENT_STORE, "autoScale.authEnabled", "segment_store.token_keys"),
        (SEGMENT_STORE, "autoScale.tlsEnabled", "segment_store.controller_ca"),
        (CONTROLLER, "controller.secureConnection", "controller.zookeeper_tls"),
        ("standalone", "singlenode.enableTls", "secure"),
        ("standalone", "singlenode.enableAuth", "secure"),
    ],
)
def test_protection_that_is_switched_on_is_there_or_asked_for(
    server: str, name: str, needed: str
) -> None:
    found = translate(server, {"JAVA_OPTS": f"-D{name}=true"}, OWN).needed
    assert list(found) == [needed]
    assert found[needed].startswith(f"{name}=true: ")
    assert needed in found[needed]
    assert translate(server, {"JAVA_OPTS": f"-D{name}=false"}, OWN).needed == {}
    if needed == "secure":
        return
    with pytest.raises(UsageError, match=f"{name}=true: "):
        check_needed({"segment_store": {}, "controller": {}}, found)
    tables: dict[str, Any] = {}
    for key in reversed(needed.split(".")):
        tables = {key: tables}
    check_needed(tables, found)


def test_names_of_another_kind_of_server_are_no_mistake() -> None:
    found = translate(CONTROLLER, COMPOSE_STORE, OWN)
    assert found.without_effect == ["WAIT_FOR", "writer.flush.threshold.bytes"]


def test_without_an_address_of_its_own_nothing_is_published() -> None:
    assert "publish" not in translate(SEGMENT_STORE, {"ZK_URL": "z:1"}, None).options
    assert "published_address" not in translate(CONTROLLER, {"ZK_URL": "z:1"}, None).options


def test_a_settings_file_and_names_are_one_or_contradict() -> None:
    file = {"controller": {"drain_seconds": 1.0, "session_seconds": 20.0}}
    assert merge_settings(file, {"controller": {"session_seconds": 20.0, "x": 1}}) == {
        "controller": {"drain_seconds": 1.0, "session_seconds": 20.0, "x": 1}
    }
    with pytest.raises(UsageError, match=r"controller\.session_seconds = 20\.0"):
        merge_settings(file, {"controller": {"session_seconds": 10.0}})


def test_the_guide_has_all_names_and_no_others() -> None:
    rows = re.findall(r"^\| `(\S+)` \|(.*)\| [^|]+ \|$", GUIDE.read_text(), re.MULTILINE)
    written = {current: set(re.findall(r"`([^`]+)`", others)) for current, others in rows}
    tables = read_names().names.values()
    known = {name.sources[0]: set(name.sources[1:]) for names in tables for name in names}
    assert written == known
