"""The units of systemd: checked by systemd itself, and their commands by the real command line."""

from __future__ import annotations

import configparser
import os
import re
import shlex
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from typer.testing import CliRunner, Result

from pravega_admin.commands import servers
from pravega_admin.errors import EXIT_CONFIGURATION
from pravega_admin.serving.serve import decode_path
from pravega_admin.serving.settings_file import read_settings
from pravega_admin.serving.standalone import check_exposure
from pravega_admin.supervisor.child_protocol import SEGMENT_STORE
from pravega_admin.verbs import app
from pravega_controller.config import ControllerConfig
from segstore.process.config import SegmentStoreConfig

ROOT = Path(__file__).resolve().parents[2]
UNITS = ROOT / "deploy" / "systemd"
NAMES = ("standalone", "server", "controller")
SECURABLE = ("server", "controller")
"""The units with a drop-in for TLS and tokens; standalone makes its own files with --secure."""
EXPOSURE_MAX = 1.6
"""What systemd makes of a service's rights at most, from 0 for none to 10."""
PROGRAM = "/opt/segstore/bin/segstore"
HOST = "store-1.example"
SECTIONS = {"running.md": "As a service", "secure.md": "With systemd"}
"""The sections that install services, by guide."""
OTHER_COMMANDS = ("python3 -m venv ", "systemctl daemon-reload", "systemctl enable ")
"""What the sections have besides: for a machine with systemd, and the program's own directory."""
PASSWORD = "correct horse battery"


class Unit(configparser.RawConfigParser):
    """A unit, whose keys keep their case."""

    def __init__(self, name: str) -> None:
        # A key may stand twice: lists of calls are made of several lines.
        super().__init__(strict=False, delimiters=("=",), comment_prefixes=("#",))
        self.optionxform = str  # type: ignore[assignment,method-assign]
        self.read_string((UNITS / f"segstore-{name}.service").read_text())
        self.service = dict(self["Service"])


def command_of(name: str) -> list[str]:
    """Return the words of a unit's command, as systemd would put them together."""
    options = variables_of(name)["OPTIONS"]
    command = Unit(name).service["ExecStart"].replace("$OPTIONS", options).replace("%H", HOST)
    program, *words = shlex.split(command)
    assert program == PROGRAM
    return words


def variables_of(name: str) -> dict[str, str]:
    """Return the variables in a unit's file of its environment."""
    lines = (UNITS / f"{name}.env").read_text().splitlines()
    return dict(line.split("=", 1) for line in lines if not line.startswith("#"))


def drop_in_of(name: str) -> dict[str, list[str]]:
    """Return the values of each key of a unit's drop-in for security."""
    text = (UNITS / f"segstore-{name}.service.d" / "secure.conf").read_text()
    found: dict[str, list[str]] = {}
    for line in text.splitlines():
        if not line.startswith(("#", "[")):
            key, _, value = line.partition("=")
            found.setdefault(key, []).append(value)
    return found


def start(name: str, variables: dict[str, str]) -> Result:
    """Run the command of a unit as far as the start of the server."""
    environment = {key: each for key, each in variables.items() if key != "OPTIONS"}
    return CliRunner().invoke(app, command_of(name), env=environment)


def paths_of(settings: Any) -> Iterator[str]:
    """Yield the paths in a table of a settings file."""
    for each in settings.values():
        if isinstance(each, dict):
            yield from paths_of(each)
        elif isinstance(each, str):
            yield each


@pytest.mark.processes
@pytest.mark.parametrize("name", NAMES)
def test_systemd_accepts_the_unit(name: str, tmp_path: Path) -> None:
    if shutil.which("systemd-analyze") is None:
        pytest.skip("systemd-analyze is not there")
    text = (UNITS / f"segstore-{name}.service").read_text()
    program = Path(sys.executable).parent / "segstore"
    unit = tmp_path / f"segstore-{name}.service"
    unit.write_text(text.replace(PROGRAM, str(program)))
    if name in SECURABLE:
        shutil.copytree(UNITS / f"{unit.name}.d", tmp_path / f"{unit.name}.d")
    command = ["systemd-analyze", "verify", "--man=no", str(unit)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_the_commands_start_what_the_units_say(monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[Any] = []

    def serve(kind: str, settings: dict[str, Any], **_: Any) -> None:
        config_type: Any = SegmentStoreConfig if kind == SEGMENT_STORE else ControllerConfig
        started.append(msgspec.convert(settings, config_type, dec_hook=decode_path))

    monkeypatch.setattr(servers, "_serve", serve)
    monkeypatch.setattr(servers, "start_standalone", started.append)
    for name in NAMES:
        done = start(name, variables_of(name))
        assert done.exit_code == 0, done.output
    standalone, server, controller = started
    assert str(standalone["data_dir"]) == Unit("standalone")["Unit"]["RequiresMountsFor"]
    assert server.cluster.published == (HOST, 12345)
    assert controller.published_address == HOST
    assert server.container_count == controller.container_count
    assert server.cluster.zookeeper == controller.zookeeper
    unit = Unit("server")
    assert str(server.storage_dir) == unit["Unit"]["RequiresMountsFor"]
    assert f"-{server.storage_dir}" == unit.service["ReadWritePaths"]
    seconds = server.cluster.hand_over_seconds_max + server.drain_seconds
    assert int(unit.service["TimeoutStopSec"]) > seconds + 10


@pytest.mark.parametrize("name", NAMES)
def test_a_service_is_protected_and_kept_running(name: str) -> None:
    service = Unit(name).service
    assert service["Type"] == "notify"
    assert service["Restart"] == "always"
    assert service["RestartPreventExitStatus"] == str(EXIT_CONFIGURATION)
    assert service["KillMode"] == "mixed"
    assert service["NoNewPrivileges"] == "yes"
    assert service["ProtectSystem"] == "strict"
    assert service["User"] == "segstore"
    assert int(service["LimitNOFILE"]) >= 1024


@pytest.mark.processes
@pytest.mark.parametrize("name", NAMES)
def test_a_service_has_few_rights(name: str) -> None:
    if shutil.which("systemd-analyze") is None:
        pytest.skip("systemd-analyze is not there")
    unit = UNITS / f"segstore-{name}.service"
    command = ["systemd-analyze", "security", "--offline=yes", "--no-pager", str(unit)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    found = re.search(r"Overall exposure level for \S+: ([\d.]+)", done.stdout)
    assert found is not None, done.stdout + done.stderr
    assert float(found[1]) <= EXPOSURE_MAX, done.stdout


@pytest.mark.parametrize("name", SECURABLE)
def test_a_secure_service_reads_the_credentials_that_it_is_given(name: str) -> None:
    (table,) = read_settings(UNITS / f"{name}.toml").values()
    given = [each.partition(":") for each in drop_in_of(name)["LoadCredential"]]
    credentials = {f"/run/credentials/segstore-{name}.service/{key}" for key, _, _ in given}
    logs = {f"/var/log/{each}/audit.log" for each in drop_in_of(name).get("LogsDirectory", ())}
    assert set(paths_of(table)) == credentials | logs
    assert {Path(path) for _, _, path in given} == {
        Path("/etc/segstore/security", key) for key, _, _ in given
    }


@pytest.mark.parametrize("name", SECURABLE)
def test_a_secure_service_lets_nobody_in_without_tls(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    drop_in, variables = drop_in_of(name), variables_of(name)
    (setting,) = drop_in["Environment"]
    variable, _, path = setting.partition("=")
    assert path == f"/etc/segstore/{name}.toml"
    for each in drop_in["UnsetEnvironment"]:
        del variables[each]
    done = start(name, variables)
    assert done.exit_code == EXIT_CONFIGURATION
    assert "can be reached from other machines" in done.stderr
    started: list[Any] = []

    def serve(kind: str, settings: dict[str, Any], *, allow_insecure: bool, **others: Any) -> None:
        check_exposure(
            settings["host"], allow_insecure=allow_insecure, kind=kind, settings=settings
        )
        started.append(settings)

    monkeypatch.setattr(servers, "_serve", serve)
    done = start(name, {**variables, variable: str(UNITS / f"{name}.toml")})
    assert done.exit_code == 0, done.output
    (table,) = tomllib.loads((UNITS / f"{name}.toml").read_text()).values()
    assert table.items() <= started[0].items()


def root_lines_of(guide: str) -> list[str]:
    """Return the commands for root in the section of a guide that installs services."""
    text = (ROOT / "docs" / "guides" / guide).read_text()
    section = re.split(rf"^#+ {SECTIONS[guide]}$", text, flags=re.MULTILINE)[1]
    return re.findall(
        r"^# (.*)$", re.split(r"^#+ [A-Z]", section, flags=re.MULTILINE)[0], re.MULTILINE
    )


@pytest.mark.processes
def test_the_lines_of_the_guides_install_what_the_services_read(tmp_path: Path) -> None:
    (tmp_path / "deploy").symlink_to(ROOT / "deploy")
    programs = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    environment = {**os.environ, "PATH": programs}

    def run(line: str) -> None:
        # There is no terminal on which to ask for the password.
        command = line.replace("user add", "user add --password-stdin")
        done = subprocess.run(
            command.replace("/etc/", f"{tmp_path}/etc/"),
            shell=True,
            cwd=tmp_path,
            env=environment,
            input=PASSWORD.encode(),
            capture_output=True,
            check=False,
        )
        assert done.returncode == 0, (line, done.stderr)

    lines = [line for guide in SECTIONS for line in root_lines_of(guide)]
    installs = [line for line in lines if line.startswith(("install ", "segstore "))]
    (add_user,) = [line for line in lines if line.startswith("useradd ")]
    others = [line for line in lines if line not in installs and line != add_user]
    assert len(installs) == 8
    assert [line for line in others if not line.startswith(OTHER_COMMANDS)] == []
    for line in installs:
        run(line)
    for line in installs:
        if "segstore-server" in line or "server.toml" in line:
            run(line.replace("server.toml", "controller.toml").replace("-server", "-controller"))
    assert add_user.split()[-1] == Unit("standalone").service["User"]
    assert f"/var/lib/{Unit('standalone').service['StateDirectory']}" in add_user.split()
    etc = tmp_path / "etc"
    for unit in (etc / "systemd" / "system").iterdir():
        assert unit.name in {path.name for path in UNITS.iterdir()}
    for name in SECURABLE:
        installed = etc / "systemd/system" / f"segstore-{name}.service.d" / "secure.conf"
        assert installed.read_text() == (UNITS / installed.parent.name / installed.name).read_text()
        for each in drop_in_of(name)["LoadCredential"]:
            file = tmp_path / each.partition(":")[2].removeprefix("/")
            assert file.stat().st_mode & 0o777 == 0o600
        assert (etc / "segstore" / f"{name}.toml").exists()
    standalone = Unit("standalone").service["EnvironmentFile"].removeprefix("-")
    assert (tmp_path / standalone.removeprefix("/")).exists()
