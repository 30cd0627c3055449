"""Servers that are started by the original's names."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from pravega_admin.commands import servers
from pravega_admin.serving import original_defaults
from pravega_admin.serving.original_defaults import find_own_address
from pravega_admin.verbs import app
from segstore.testing.ports import free_ports
from segstore_client.controller.controller_client import ControllerClient

GUIDE = Path(__file__).resolve().parents[3] / "docs" / "guides" / "original-names.md"
ON = {"SEGSTORE_ORIGINAL_NAMES": "1", "SEGSTORE_ALLOW_INSECURE": "1"}


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """The settings that servers would have been started with."""
    found: list[dict[str, Any]] = []

    def serve(kind: str, settings: dict[str, Any], **options: Any) -> None:
        found.append({**settings, **options})

    monkeypatch.setattr(servers, "_serve", serve)
    monkeypatch.setattr(servers, "start_standalone", found.append)
    monkeypatch.setattr(original_defaults, "find_own_address", lambda: "10.1.2.3")
    return found


def invoke(command: str, **variables: str) -> Result:
    return CliRunner().invoke(app, shlex.split(command), env={**ON, **variables})


def test_names_are_defaults_of_options_and_settings(
    started: list[dict[str, Any]], tmp_path: Path
) -> None:
    file = tmp_path / "settings.toml"
    file.write_text("[controller]\nretry_seconds_max = 60.0\n")
    done = invoke(
        f"controller --config {file} --port 9091",
        ZK_URL="z:1",
        ZK_SESSION_TIMEOUT_MS="20000",
        REST_SERVER_PORT="10080",
        REST_SERVER_IP="10.0.0.1",
    )
    assert done.exit_code == 0, done.output
    (settings,) = started
    assert settings["zookeeper"] == "z:1"
    assert settings["port"] == 9091
    assert settings["host"] == "0.0.0.0"
    assert settings["published_address"] == "10.1.2.3"
    assert settings["session_seconds"] == 20.0
    assert settings["retry_seconds_max"] == 60.0
    assert settings["http_port"] == 10080
    assert settings["without_effect"] == ["REST_SERVER_IP"]
    assert settings["allow_insecure"]


def test_an_option_may_say_the_same_and_nothing_else(started: list[dict[str, Any]]) -> None:
    assert invoke("server --zookeeper z:1 --host 10.0.0.1", ZK_URL="z:1").exit_code == 0
    assert started[0]["host"] == "10.0.0.1"
    done = invoke("server --zookeeper z:1", ZK_URL="y:1")
    assert done.exit_code == 2
    assert "ZK_URL says 'y:1', and --zookeeper 'z:1'" in done.stderr
    done = invoke("server", TIER2_STORAGE="FILESYSTEM", SEGSTORE_TIER2="s3://b/p", ZK_URL="z:1")
    assert done.exit_code == 2
    assert "--tier2 's3://b/p'" in done.stderr


def test_a_place_in_hdfs_has_to_be_named_anew(started: list[dict[str, Any]]) -> None:
    variables = {
        "TIER2_STORAGE": "HDFS",
        "HDFS_URL": "namenode:8020",
        "HDFS_REPLICATION": "2",
        "ZK_URL": "z:1",
    }
    done = invoke("server", **variables)
    assert done.exit_code == 2
    assert "--tier2 webhdfs://NAMENODE:9870/PATH" in done.stderr
    done = invoke("server --tier2 webhdfs://namenode:9870/segstore", **variables)
    assert done.exit_code == 0, done.output
    assert started[0]["tier2"] == "webhdfs://namenode:9870/segstore"
    assert started[0]["hdfs"] == {"replication": 2}
    assert started[0]["without_effect"] == ["HDFS_URL"]


def test_protection_is_asked_for_where_the_originals_names_switch_it_on(
    started: list[dict[str, Any]], tmp_path: Path
) -> None:
    variables = {"AUTHORIZATION_ENABLED": "true", "USER_PASSWORD_FILE": "passwd"}
    done = invoke("controller", **variables)
    assert done.exit_code == 2
    assert "name it in controller.token_keys of a settings file" in done.stderr
    file = tmp_path / "settings.toml"
    file.write_text('[controller]\ntoken_keys = "token.key"\n')
    assert invoke(f"controller --config {file}", **variables).exit_code == 0
    assert (started[0]["accounts"], started[0]["token_keys"]) == ("passwd", "token.key")
    options = {"JAVA_OPTS": "-Dsinglenode.security.tls.enable=true"}
    done = invoke("standalone", **options)
    assert done.exit_code == 2
    assert "say --secure" in done.stderr
    assert invoke("standalone --secure", **options).exit_code == 0
    assert started[1]["secure"]


def test_keys_for_s3_are_given_to_the_client(
    started: list[dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    environment = {"AWS_ACCESS_KEY_ID": "other"}
    monkeypatch.setattr(original_defaults.os, "environ", environment)
    environment.update(
        {
            **ON,
            "TIER2_STORAGE": "EXTENDEDS3",
            "EXTENDEDS3_BUCKET": "bucket",
            "EXTENDEDS3_ACCESS_KEY_ID": "me",
        }
    )
    command = ["server", f"--port={free_ports(1)[0]}"]
    done = CliRunner().invoke(app, command)
    assert done.exit_code == 2
    assert "AWS_ACCESS_KEY_ID differs" in done.stderr
    del environment["AWS_ACCESS_KEY_ID"]
    assert CliRunner().invoke(app, command).exit_code == 0
    assert environment["AWS_ACCESS_KEY_ID"] == "me"


@pytest.mark.parametrize("switch", ["", "0"])
def test_without_the_switch_nothing_is_looked_at(
    started: list[dict[str, Any]], switch: str
) -> None:
    done = invoke("controller", ZK_URL="z:1", TLS_ENABLED="true", SEGSTORE_ORIGINAL_NAMES=switch)
    assert done.exit_code == 0, done.output
    assert started[0]["host"] == "127.0.0.1"
    assert "zookeeper" not in started[0]


def test_the_commands_of_the_guide_start_servers(started: list[dict[str, Any]]) -> None:
    commands = re.findall(r"^\$ (\w+=.*)$", GUIDE.read_text(), re.MULTILINE)
    assert len(commands) == 3
    for command in commands:
        words = shlex.split(command)
        place = words.index("segstore")
        variables = dict(word.split("=", 1) for word in words[:place])
        done = invoke(shlex.join(words[place + 1 :]), **variables)
        assert done.exit_code == 0, done.output
    standalone, store, controller = started
    assert standalone["published_address"] == "192.168.0.2"
    assert standalone["host"] == "0.0.0.0"
    assert store["cluster"] == {"zookeeper": "zk1:2181", "published": ("store-1", 12345)}
    assert store["storage_dir"] == "/mnt/tier2"
    assert controller["container_count"] == store["container_count"] == 8


def test_a_store_that_is_started_so_sends_clients_where_it_is_told(
    new_store: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in {**ON, "HOST_IP": "127.0.0.2", "TLS_ENABLED": "false"}.items():
        monkeypatch.setenv(name, value)
    store = new_store()
    store.start()
    with ControllerClient(store.controller) as controller:
        assert controller.segment_address("demo", "any", 0)[0] == "127.0.0.2"


def test_an_own_address_is_of_use_to_others() -> None:
    address = find_own_address()
    assert address is None or not address.startswith("127.")
