"""A store that is started where it may not write says so in one sentence."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from pravega_admin.verbs import app
from segstore.ownership.data_directory import DataDirectory
from segstore.testing.ports import free_ports

pytestmark = pytest.mark.processes

IN_A_NAMESPACE = ("unshare", "--user", "--map-root-user", "--mount")


def can_mount() -> bool:
    try:
        command = [*IN_A_NAMESPACE, "mount", "-t", "tmpfs", "tmpfs", "/mnt"]
        return subprocess.run(command, capture_output=True, check=False).returncode == 0
    except FileNotFoundError:
        return False


@pytest.mark.parametrize("name", ["standalone.lock", "run/standalone.pid", "run/controller.pid"])
def test_a_full_disk_is_one_sentence_and_exit_code_75(tmp_path: Path, name: str) -> None:
    data = tmp_path / "data"
    DataDirectory.open(data)
    (data / "run").mkdir()
    # Every write to /dev/full fails as on a full disk.
    (data / name).symlink_to("/dev/full")
    ports = free_ports(2)
    result = CliRunner().invoke(
        app,
        [
            *("standalone", "--data-dir", str(data), "--log-file", str(tmp_path / "log")),
            *("--controller-port", str(ports[0]), "--segment-store-port", str(ports[1])),
        ],
    )
    assert result.exit_code == 75, result.output
    (line,) = result.stderr.splitlines()
    assert str(data) in line
    assert "is full; make room there and start again" in line


SCRIPT = """
mount -t tmpfs -o size=2m tmpfs "$DISK" || exit 99
start() {
    "$PYTHON" -m pravega_admin server --port "$PORT" --data-dir "$1" 2>&1 >&2 | grep segstore: >&3
    echo "${PIPESTATUS[0]}" >&3
}
exec 3>&1 2>/dev/null
start "$DISK/data"
mount -o remount,ro "$DISK"
start "$DISK/data"
start "$DISK/other"
"""


def test_full_and_read_only_file_systems_are_told(tmp_path: Path) -> None:
    if not can_mount():
        pytest.skip("needs to mount a file system in a namespace of its own")
    disk = tmp_path / "disk"
    disk.mkdir()
    done = subprocess.run(
        [*IN_A_NAMESPACE, "bash", "-c", SCRIPT],
        env={
            **os.environ,
            "DISK": str(disk),
            "PORT": str(free_ports(1)[0]),
            "PYTHON": sys.executable,
        },
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    full, full_code, *read_only = done.stdout.splitlines()
    assert f"{disk} is full; make room there and start again" in full
    assert full_code == "75"
    for line in read_only[::2]:
        assert f"{disk} is read-only; mount it for writing and start again" in line
    assert read_only[1::2] == ["78", "78"]
