"""Tests of how a supervisor ends its children, with children that are no processes."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from pravega_admin.supervisor.child_process import ChildProcess, ChildSpec
from pravega_admin.supervisor.run_directory import RunDirectory
from pravega_admin.supervisor.supervisor import Supervisor

NO_PID = 2**30
"""Larger than the id of any process."""


class FakeProcess(ChildProcess):
    """Ends with the first signal that it does not ignore; ``end_reader`` is readable then."""

    def __init__(self, *ignored: int) -> None:
        super().__init__(NO_PID, os.open(os.devnull, os.O_RDONLY))
        self.signals: list[int] = []
        self.end_reader, self._end_writer = os.pipe()
        self._ignored = ignored

    @property
    def has_ended(self) -> bool:
        return self._end_writer < 0

    def receive(self, number: int) -> None:
        self.signals.append(number)
        if not self.has_ended and number not in self._ignored:
            os.close(self._end_writer)
            self._end_writer = -1

    def kill_group(self) -> None:
        if not self.has_ended:
            self.receive(signal.SIGKILL)

    def wait(self) -> int:
        assert self.has_ended
        return -self.signals[-1]


class Scene:
    """A supervisor of one child, and what it reports."""

    def __init__(self, process: FakeProcess, path: Path, patch: pytest.MonkeyPatch) -> None:
        self.sentences: list[str] = []
        patch.setattr(os, "pidfd_open", lambda pid: process.end_reader)
        patch.setattr(signal, "pidfd_send_signal", lambda end, number: process.receive(number))
        self.supervisor = Supervisor(
            [ChildSpec("one", ("/nowhere",), drain_seconds=0.0)],
            directory=RunDirectory(path, -1),
            report=self.sentences.append,
            started=[process],
        )

    def run(self) -> None:
        self.supervisor.run(on_ready=lambda: pytest.fail("it was ready"))


def test_a_child_is_asked_to_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    process = FakeProcess()
    scene = Scene(process, tmp_path, monkeypatch)
    scene.supervisor.stop()
    scene.run()
    assert process.signals == [signal.SIGTERM]
    assert scene.sentences == []


def test_a_child_that_does_not_end_in_time_is_killed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    process = FakeProcess(signal.SIGTERM)
    scene = Scene(process, tmp_path, monkeypatch)
    scene.supervisor.stop()
    scene.run()
    assert process.signals == [signal.SIGTERM, signal.SIGKILL]
    assert scene.sentences == ["one does not end by itself; killing it"]


def test_a_child_that_is_killed_at_once_is_not_asked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    process = FakeProcess()
    scene = Scene(process, tmp_path, monkeypatch)
    scene.supervisor.kill_all()
    scene.run()
    assert process.signals == [signal.SIGKILL]
    assert scene.sentences == []
