"""``segstore config print``: values that servers really get, where they come from, and secrets."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from pravega_admin.serving import serve, standalone
from pravega_admin.serving.declarations import declarations_of
from pravega_admin.serving.origins import _mask, _plain, find_settings
from pravega_admin.verbs import app

SETTINGS = """
[segment_store]
# a comment
cache_bytes_max = 1000000000
drain_seconds = 2

[segment_store.cluster]
password = "open sesame"
racks = {"10.0.0.1:3181" = "a"}

[controller]
token_seconds = 60
history_seconds_min = 7.5

[controller.bearer]
keys = "https://me:secret@idp.example/keys"
issuer = "i"
audience = "a"
"""

Printed = dict[str, tuple[Any, str]]
Print = Callable[..., Printed]


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "store.toml"
    path.write_text(SETTINGS)
    return path


@pytest.fixture
def print_(monkeypatch: pytest.MonkeyPatch) -> Print:
    def run(*arguments: str, code: int = 0, **variables: str) -> Printed:
        result = CliRunner().invoke(
            app, ["config", "print", *arguments, "--origin", "-o", "json"], env=variables
        )
        assert result.exit_code == code, result.output
        if code:
            return {"": (result.stderr, "")}
        return {
            each["setting"]: (each["value"], each["origin"]) for each in json.loads(result.stdout)
        }

    return run


def test_each_setting_is_told_with_its_origin(print_: Print, file: Path) -> None:
    found = print_(
        *("server", "--config", str(file), "--port", "4444", "--zookeeper", "z:2181"),
        SEGSTORE_TIER2="s3://bucket/x",
        AWS_SECRET_ACCESS_KEY="open sesame",
        AWS_REGION="eu",
    )
    assert found["segment_store.port"] == (4444, "option --port")
    assert found["segment_store.host"] == ("127.0.0.1", "default")
    assert found["segment_store.cache_bytes_max"] == (1_000_000_000, f"{file}:4")
    assert found["segment_store.drain_seconds"] == (2, f"{file}:5")
    assert found["segment_store.cluster.racks"] == ({"10.0.0.1:3181": "a"}, f"{file}:9")
    assert found["segment_store.cluster.zookeeper"] == ("z:2181", "option --zookeeper")
    assert found["segment_store.cluster.name"] == ("pravega-cluster", "default")
    assert found["segment_store.tier2"] == ("s3://bucket/x", "variable SEGSTORE_TIER2")
    assert found["AWS_REGION"] == ("eu", "variable AWS_REGION")
    assert found["--log-level"] == ("info", "default")
    assert found["--config"] == (str(file), "option --config")
    assert not any(name.startswith("controller.") for name in found)

    found = print_("controller", "--segment-store", "a:1", "--segment-store", "b:2")
    assert found["controller.segment_stores"] == (["a:1", "b:2"], "option --segment-store")
    found = print_("standalone", "--stores", "2", SEGSTORE_CONFIG=str(file))
    assert found["--stores"] == ("2", "option --stores")
    assert found["--config"] == (str(file), "variable SEGSTORE_CONFIG")
    assert found["controller.token_seconds"] == (60, f"{file}:12")
    assert found["segment_store.drain_seconds"] == (2, f"{file}:5")
    # Options of a standalone store make these.
    assert "segment_store.port" not in found
    assert "controller.port" not in found


def test_names_of_the_original_are_origins(print_: Print) -> None:
    found = print_(
        "controller",
        SEGSTORE_ORIGINAL_NAMES="1",
        REST_SERVER_PORT="10080",
        JAVA_OPTS="-Dcontroller.retention.frequency.minutes=2",
    )
    assert found["controller.retention_period_seconds"] == (
        120.0,
        "property controller.retention.frequency.minutes in JAVA_OPTS",
    )
    assert found["controller.host"] == ("0.0.0.0", "default of the original")


def test_secrets_are_masked(print_: Print, file: Path) -> None:
    everything = {}
    for server in ("server", "controller", "standalone"):
        everything |= print_(
            *(server, "--config", str(file)),
            SEGSTORE_TIER2="s3://bucket/x",
            AWS_SECRET_ACCESS_KEY="open sesame",
            AWS_SESSION_TOKEN="open sesame",
            SEGSTORE_TOKEN="open sesame",
        )
    assert everything["segment_store.cluster.password"] == ("***", f"{file}:8")
    assert everything["AWS_SECRET_ACCESS_KEY"] == ("***", "variable AWS_SECRET_ACCESS_KEY")
    assert everything["controller.bearer.keys"][0] == "https://***@idp.example/keys"
    assert "sesame" not in str(everything)
    assert ":secret" not in str(everything)
    # A path to a secret is none.
    assert everything["controller.token_keys"] == (None, "default")
    told = print_("server", "--token-keys", "x", code=2)
    assert "No such option" in told[""][0]


def test_only_changes_are_told_when_asked_for(print_: Print, file: Path) -> None:
    found = print_("standalone", "--config", str(file), "--changed")
    assert {name.partition(".")[0] for name in found} == {"--config", "segment_store", "controller"}
    assert len(found) == 1 + 4 + 5


def test_what_a_start_would_refuse_is_refused(print_: Print, tmp_path: Path) -> None:
    path = tmp_path / "wrong.toml"
    path.write_text("[controller]\ntoken_second = 1\n")
    told = print_("controller", "--config", str(path), code=78)[""][0]
    assert f"{path}, line 2" in told
    assert "token_seconds" in told
    assert "say one of standalone" in print_("--port", "1", code=2)[""][0]
    print_("server", "--port", "none", code=2)


@pytest.mark.parametrize("verb", ["server", "controller"])
def test_defaults_are_those_of_the_servers(
    verb: str, file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What a start hands to the server is what is told, field by field."""
    started: list[dict[str, Any]] = []
    monkeypatch.setattr(
        serve, "run_server", lambda server, settings, on_ready: started.append(dict(settings))
    )
    monkeypatch.setattr("pravega_admin.output.logs.configure_logs", lambda *_, **__: None)
    monkeypatch.setattr(standalone, "check_port", lambda *_: None)
    arguments = [verb, "--port", "4444", "--config", str(file)]
    arguments += ["--zookeeper", "z:2181"]
    arguments += (
        ["--data-dir", str(tmp_path), "--tier2", "s3://bucket/x"] if verb == "server" else []
    )
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == 0, result.output
    (settings,) = started
    kind = {"server": "segment-store", "controller": "controller"}[verb]
    config = serve.read_config(verb, serve.SERVERS[kind].load().config_type, settings)

    import typer.main

    command = typer.main.get_command(app).commands[verb]  # type: ignore[attr-defined]
    told = {
        each.name: each.value
        for each in find_settings(verb, command.make_context(verb, arguments[1:]))
    }
    compared = 0
    for each in declarations_of("segment_store" if verb == "server" else "controller"):
        section: Any = config
        for key in each.keys[:-1]:
            section = getattr(section, key, None)
        if section is None or each.path not in told:
            continue
        value = _mask(each.name, _plain(getattr(section, each.name)))
        assert told[each.path] == value, each.path
        compared += 1
    assert compared > 25
