"""``segstore doctor``: beside a real store, and beside things that are wrong."""

from __future__ import annotations

import json
import socket
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from typer.testing import CliRunner

from pravega_admin.inspection import machine_checks, server_findings
from pravega_admin.inspection.findings import Finding, Severity
from pravega_admin.verbs import app
from segstore.testing.ports import free_ports

if TYPE_CHECKING:
    from ...conftest import Standalone

Doctor = Callable[..., tuple[int, dict[str, Any]]]


@pytest.fixture
def doctor(monkeypatch: pytest.MonkeyPatch) -> Doctor:
    """Runs it on a machine without faults; returns the exit code, and a row for each check."""
    healthy = [Finding("sync", Severity.OK, "a synced write takes 1 ms")]
    monkeypatch.setattr(machine_checks, "check_machine", lambda data_dir: iter(healthy))

    def run(*arguments: str) -> tuple[int, dict[str, Any]]:
        result = CliRunner().invoke(app, ["doctor", *arguments, "-o", "json"])
        rows = {row["check"]: row for row in json.loads(result.stdout)}
        return result.exit_code, rows

    return run


def test_a_store_that_runs_is_well(store: Standalone, doctor: Doctor) -> None:
    where = f"127.0.0.1:{store.segment_store_port}"
    chunks = sorted(store.data_dir.rglob("*doctor*"))
    code, rows = doctor(
        *("--data-dir", str(store.data_dir), "--controller", store.controller),
        *("--segment-store", where),
    )
    assert code == 0, rows
    assert {name: row["severity"] for name, row in rows.items()} == {
        "sync": "ok",
        "data directory": "ok",
        "tier 2": "ok",
        "controller": "ok",
        "segment store": "ok",
    }
    assert sorted(store.data_dir.rglob("*doctor*")) == chunks == []


def test_ports_that_are_free_are_a_note_and_taken_ones_a_fault(
    doctor: Doctor, tmp_path: Path
) -> None:
    free, other = free_ports(2)
    nothing = ("--data-dir", str(tmp_path / "data"))
    code, rows = doctor(
        *nothing, "--controller", f"127.0.0.1:{free}", "--segment-store", f"127.0.0.1:{other}"
    )
    assert code == 0
    assert rows["controller"]["severity"] == rows["segment store"]["severity"] == "note"
    with socket.create_server(("127.0.0.1", 0)) as taken:
        taken.settimeout(0)
        port = taken.getsockname()[1]
        code, rows = doctor(
            *nothing, "--controller", f"127.0.0.1:{free}", "--segment-store", f"127.0.0.1:{port}"
        )
    assert code == 10
    assert rows["segment store"]["severity"] == "fault"
    assert f"sport = :{port}" in rows["segment store"]["mend"]


def test_the_exit_code_is_that_of_the_worst_finding(
    doctor: Doctor, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    free, other = free_ports(2)
    arguments = [
        *("--controller", f"127.0.0.1:{free}", "--segment-store", f"127.0.0.1:{other}"),
        *("--data-dir", str(tmp_path / "data")),
    ]
    for severity, code in ((Severity.NOTE, 0), (Severity.WARNING, 9), (Severity.FAULT, 10)):
        found = [Finding("clock", severity, "it is late", "wait")]
        monkeypatch.setattr(machine_checks, "check_machine", lambda data_dir, f=found: iter(f))
        assert doctor(*arguments)[0] == code
    result = CliRunner().invoke(app, ["doctor", *arguments])
    assert "1 fault: see how to mend each" in result.stderr
    assert "it is late" in result.stdout


@pytest.mark.proof
def test_a_zookeeper_that_is_not_there_is_a_fault(doctor: Doctor, tmp_path: Path) -> None:
    free, other, third = free_ports(3)
    code, rows = doctor(
        *("--controller", f"127.0.0.1:{free}", "--segment-store", f"127.0.0.1:{other}"),
        *("--data-dir", str(tmp_path / "data"), "--zookeeper", f"127.0.0.1:{third}"),
    )
    assert code == 10
    assert rows["zookeeper"]["severity"] == "fault"


def test_a_directory_of_something_else_is_a_fault(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").touch()
    (found,) = server_findings.check_store(tmp_path, {})
    assert (found.check, found.severity) == ("data directory", Severity.FAULT)
