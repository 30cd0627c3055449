"""The audit log: its lines, and that no call waits for it."""

from __future__ import annotations

import json
import threading
from pathlib import Path

import pytest

from pravega_controller.rpc import audit_log
from pravega_controller.rpc.audit_log import AuditLog

MOMENT_MS = 1_800_000_000_000


def lines_of(path: Path) -> list[dict[str, object]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_changes_and_refusals_are_lines(tmp_path: Path) -> None:
    path = tmp_path / "audit.log"
    with AuditLog(path, now_ms=lambda: MOMENT_MS) as log:
        log.note("deleteStream", "ann", "ipv4:127.0.0.1:1", "s/t")
        log.note("sealStream", None, "ipv4:127.0.0.1:2", "s/t", "nobody called")
    assert lines_of(path) == [
        {
            "time": "2027-01-15T08:00:00.000Z",
            "user": "ann",
            "address": "ipv4:127.0.0.1:1",
            "method": "deleteStream",
            "resource": "s/t",
            "allowed": True,
        },
        {
            "time": "2027-01-15T08:00:00.000Z",
            "user": None,
            "address": "ipv4:127.0.0.1:2",
            "method": "sealStream",
            "resource": "s/t",
            "allowed": False,
            "reason": "nobody called",
        },
    ]
    assert path.stat().st_mode & 0o777 == 0o600


def test_a_full_file_is_followed_by_another(tmp_path: Path) -> None:
    path = tmp_path / "audit.log"
    with AuditLog(path, now_ms=lambda: MOMENT_MS, file_bytes_max=1_000, files_kept=2) as log:
        for number in range(50):
            log.note("createScope", "ann", "here", f"scope-{number}")
    assert sorted(each.name for each in tmp_path.iterdir()) == [
        "audit.log",
        "audit.log.1",
        "audit.log.2",
    ]
    assert lines_of(path)[-1]["resource"] == "scope-49"
    assert all(each.stat().st_mode & 0o777 == 0o600 for each in tmp_path.iterdir())


def test_a_call_does_not_wait_for_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(audit_log, "LINES_WAITING_MAX", 2)
    may_write = threading.Event()
    emit = audit_log._PrivateFile.emit
    monkeypatch.setattr(
        audit_log._PrivateFile, "emit", lambda file, line: (may_write.wait(30), emit(file, line))[1]
    )
    path = tmp_path / "audit.log"
    with AuditLog(path, now_ms=lambda: MOMENT_MS) as log:
        for number in range(100):
            log.note("createScope", "ann", "here", str(number))
        may_write.set()
        while not log._lines.empty():
            threading.Event().wait(0.01)
        log.note("createScope", "ann", "here", "last")
    last = lines_of(path)[-1]
    assert last["resource"] == "last"
    assert last["lines_lost_before"] in (97, 98)


def test_without_a_path_nothing_is_written(tmp_path: Path) -> None:
    with AuditLog(None, now_ms=lambda: MOMENT_MS) as log:
        log.note("createScope", "ann", "here", "s")
    assert list(tmp_path.iterdir()) == []


def test_long_names_make_short_lines(tmp_path: Path) -> None:
    path = tmp_path / "audit.log"
    with AuditLog(path, now_ms=lambda: MOMENT_MS) as log:
        log.note("createScope", "u" * 3_000_000, "here", "s" * 3_000_000, "r" * 3_000_000)
    assert path.stat().st_size < 4_000
