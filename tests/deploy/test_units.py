"""The units of systemd: checked by systemd itself, and their commands by the real command line."""

from __future__ import annotations

import configparser
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest
from typer.testing import CliRunner

from pravega_admin import serve_commands
from pravega_admin.errors import EXIT_CONFIGURATION
from pravega_admin.serve import decode_path
from pravega_admin.supervisor.child_protocol import SEGMENT_STORE
from pravega_admin.verbs import app
from pravega_controller.config import ControllerConfig
from segstore.process.config import SegmentStoreConfig

UNITS = Path(__file__).resolve().parents[2] / "deploy" / "systemd"
NAMES = ("standalone", "server", "controller")
PROGRAM = "/opt/segstore/bin/segstore"
HOST = "store-1.example"


class Unit(configparser.RawConfigParser):
    """A unit, whose keys keep their case."""

    def __init__(self, name: str) -> None:
        super().__init__(strict=True, delimiters=("=",), comment_prefixes=("#",))
        self.optionxform = str  # type: ignore[assignment,method-assign]
        self.read_string((UNITS / f"segstore-{name}.service").read_text())
        self.service = dict(self["Service"])


def command_of(name: str) -> list[str]:
    """Return the words of a unit's command, as systemd would put them together."""
    (line,) = [
        line
        for line in (UNITS / f"{name}.env").read_text().splitlines()
        if line and not line.startswith("#")
    ]
    options = line.removeprefix("OPTIONS=")
    command = Unit(name).service["ExecStart"].replace("$OPTIONS", options).replace("%H", HOST)
    program, *words = shlex.split(command)
    assert program == PROGRAM
    return words


@pytest.mark.processes
@pytest.mark.parametrize("name", NAMES)
def test_systemd_accepts_the_unit(name: str, tmp_path: Path) -> None:
    if shutil.which("systemd-analyze") is None:
        pytest.skip("systemd-analyze is not there")
    text = (UNITS / f"segstore-{name}.service").read_text()
    program = Path(sys.executable).parent / "segstore"
    unit = tmp_path / f"segstore-{name}.service"
    unit.write_text(text.replace(PROGRAM, str(program)))
    command = ["systemd-analyze", "verify", "--man=no", str(unit)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_the_commands_start_what_the_units_say(monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[Any] = []

    def serve(kind: str, settings: dict[str, Any], **_: Any) -> None:
        config_type: Any = SegmentStoreConfig if kind == SEGMENT_STORE else ControllerConfig
        started.append(msgspec.convert(settings, config_type, dec_hook=decode_path))

    monkeypatch.setattr(serve_commands, "_serve", serve)
    monkeypatch.setattr(serve_commands, "start_standalone", started.append)
    for name in NAMES:
        done = CliRunner().invoke(app, command_of(name))
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
