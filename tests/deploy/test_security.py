"""Checks what a secure cluster on one machine is started with."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
if str(ROOT) not in sys.path:
    sys.path.insert(0, str(ROOT))

from deploy.one_machine.__main__ import open_given_security, parse_arguments  # noqa: E402
from deploy.one_machine.parts import list_parts, write_settings_files  # noqa: E402
from deploy.one_machine.security import KEY_STORE  # noqa: E402

from pravega_admin.errors import ConfigurationError  # noqa: E402
from pravega_admin.serving.settings_file import read_settings  # noqa: E402
from pravega_security.certificates import describe_chain  # noqa: E402


def start(data_dir: Path, *more: str) -> dict[str, tuple[str, ...]]:
    """Write what a secure cluster is started with; return the commands of its processes."""
    settings, _ = parse_arguments(["--secure", "--data-dir", str(data_dir), *more])
    security = open_given_security(settings)
    write_settings_files(settings, security)
    return {part.name: part.command for part in list_parts(settings, "jars", security)}


def test_all_parts_use_the_same_files(tmp_path: Path) -> None:
    commands = start(tmp_path)
    directory = tmp_path / "security"
    zookeeper = (tmp_path / "zookeeper.properties").read_text()
    assert "secureClientPort=2181\n" in zookeeper
    assert "\nclientPort=" not in zookeeper
    assert f"ssl.keyStore.location={directory / KEY_STORE}\n" in zookeeper
    bookie = (tmp_path / "bookie-1.properties").read_text()
    assert f"tlsKeyStore={directory / 'server.key'}\n" in bookie
    assert "-Dzookeeper.client.secure=true" in commands["bookie-1"]
    assert f"--ca={directory / 'ca.pem'}" in commands["format"]
    servers = tmp_path / "servers.toml"
    for name in ("segment-store-0", "controller-1"):
        assert f"--config={servers}" in commands[name]
    tables = read_settings(servers)
    store, controller = tables["segment_store"], tables["controller"]
    assert store["token_keys"] == controller["token_keys"] == str(directory / "token.key")
    assert store["cluster"]["bookie_tls"] == controller["zookeeper_tls"]


def test_a_second_start_keeps_the_files_and_shows_no_password(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    start(tmp_path)
    assert "shown this once" in capsys.readouterr().err
    before = {path: path.read_bytes() for path in (tmp_path / "security").iterdir()}
    start(tmp_path)
    assert {path: path.read_bytes() for path in (tmp_path / "security").iterdir()} == before
    assert capsys.readouterr().err == ""


def test_the_password_of_the_environment_is_handed_to_no_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("SEGSTORE_ADMIN_PASSWORD", "from-outside")
    commands = start(tmp_path)
    assert "SEGSTORE_ADMIN_PASSWORD" not in os.environ
    assert "from-outside" not in capsys.readouterr().err
    assert not any("from-outside" in each for command in commands.values() for each in command)


def test_the_keys_are_for_their_owner_alone(tmp_path: Path) -> None:
    start(tmp_path)
    for path in (tmp_path / "security").iterdir():
        if path.suffix != ".pem":
            assert path.stat().st_mode & 0o077 == 0, path


def test_the_certificate_has_the_hosts_of_proxies(tmp_path: Path) -> None:
    start(tmp_path, "--detour=segment-store-0=127.0.0.2")
    pem = tmp_path / "security" / "server.pem"
    [own, *_] = describe_chain(pem.read_bytes(), str(pem))
    assert {"localhost", "127.0.0.1", "127.0.0.2"} <= set(own.names)


def test_a_secure_cluster_is_not_opened_to_everybody_by_forgetting_an_option(
    tmp_path: Path,
) -> None:
    start(tmp_path)
    settings, _ = parse_arguments(["--data-dir", str(tmp_path)])
    with pytest.raises(ConfigurationError, match="is a secure one; say --secure"):
        open_given_security(settings)
