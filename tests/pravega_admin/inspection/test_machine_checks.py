"""Checks of this machine, and of its disk."""

from __future__ import annotations

import math
import resource
import shutil
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from pravega_admin.inspection import machine_checks
from pravega_admin.inspection.findings import Finding, Severity, worst_of
from pravega_admin.inspection.machine_checks import (
    SYNCS,
    check_clock,
    check_disk,
    check_files,
    check_machine,
    find_file_system,
    measure_syncs,
)


def by_check(findings: Iterator[Finding]) -> dict[str, Finding]:
    return {each.check: each for each in findings}


def test_a_machine_is_looked_at(tmp_path: Path) -> None:
    found = by_check(check_machine(tmp_path))
    assert {"versions", "open files", "memory", "clock", "room", "sync"} <= found.keys()
    assert "segstore" in found["versions"].found
    assert found["versions"].severity is Severity.OK
    assert all(each.mend for each in found.values() if each.severity is Severity.FAULT)


def test_a_missing_data_directory_is_not_made(tmp_path: Path) -> None:
    found = by_check(check_disk(tmp_path / "none" / "data"))
    assert str(tmp_path) in found["sync"].found
    assert list(tmp_path.iterdir()) == []


def test_syncs_are_measured_and_leave_nothing(tmp_path: Path) -> None:
    taken = measure_syncs(tmp_path)
    assert 0 < len(taken) <= SYNCS
    assert min(taken) > 0
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("milliseconds", "severity"),
    [(0.001, Severity.WARNING), (1.0, "ok"), (50.0, Severity.WARNING), (900.0, Severity.FAULT)],
)
def test_a_slow_disk_and_one_that_does_not_sync_are_told(
    milliseconds: float, severity: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(machine_checks, "measure_syncs", lambda place: [milliseconds / 1000] * 3)
    assert by_check(check_disk(tmp_path))["sync"].severity == severity


@pytest.mark.parametrize(
    ("free", "severity"), [(90, "ok"), (10, Severity.WARNING), (1, Severity.FAULT)]
)
def test_a_full_disk_is_told(
    free: int, severity: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    usage = SimpleNamespace(free=free, total=100)
    monkeypatch.setattr(shutil, "disk_usage", lambda place: usage)
    assert by_check(check_disk(tmp_path))["room"].severity == severity


def test_memory_is_no_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine_checks, "find_file_system", lambda place: "tmpfs")
    assert by_check(check_disk(tmp_path))["file system"].severity is Severity.FAULT
    assert find_file_system(Path("/proc")) == "proc"


@pytest.mark.parametrize(("hard", "severity"), [(64, Severity.FAULT), (512, Severity.WARNING)])
def test_few_open_files_are_told(
    hard: int, severity: Severity, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda which: (hard, hard))
    assert check_files().severity is severity


def test_a_clock_of_long_ago_is_a_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    assert check_clock().severity is not Severity.FAULT
    monkeypatch.setattr(machine_checks, "time", SimpleNamespace(time=lambda: 1.0, strftime=str))
    assert check_clock().severity is Severity.FAULT


@pytest.mark.parametrize(
    ("seconds", "severity"), [(0.003, Severity.OK), (math.inf, Severity.WARNING)]
)
def test_a_clock_that_nothing_synchronizes_is_told(
    seconds: float, severity: Severity, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(machine_checks, "read_clock_error", lambda: seconds)
    assert check_clock().severity is severity


def test_the_worst_of_findings_counts() -> None:
    assert worst_of([]) is Severity.OK
    assert worst_of(Finding("a", each, "") for each in Severity) is Severity.FAULT
