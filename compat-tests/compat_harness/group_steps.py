"""Readers of groups, of the official Java client.

Owns: ``GroupSteps``, a group of one reader that takes one step at a time, and ``SharingReader``, a
reader of a group that others have made: the lines to and from the programs of the same names.
"""

from __future__ import annotations

import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from foreign_servers.deadlines import scale
from foreign_servers.tied_processes import start_from_any_thread, tied

from compat_harness.java import JavaClient

ANSWER_SECONDS_MAX = scale(60.0)


class LineProgram:
    """A program that says "online", and then answers each line with a line."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process
        assert self._answer() == "online"

    def step(self, line: str) -> str:
        """Let the official client take a step; return its answer."""
        assert self._process.stdin is not None
        self._process.stdin.write(line + "\n")
        self._process.stdin.flush()
        return self._answer()

    def _answer(self) -> str:
        assert self._process.stdout is not None
        return self._process.stdout.readline().rstrip("\n")


class GroupSteps(LineProgram):
    """A group of one reader, and a writer; both are of the official client."""

    def read(self, count: int) -> list[int]:
        """Return the numbers of the next events, sorted; the reader may have to be made again."""
        text = self.step(f"read {count}")
        if text == "again":
            text = self.step(f"read {count}")
        return sorted(int(each.removeprefix("event-")) for each in text.split(",") if each)


@contextmanager
def open_group(
    client: JavaClient, controller: str, scope: str, *, segments: int
) -> Iterator[GroupSteps]:
    """Make the stream ``stream`` and the group ``group`` in a scope, and read with the group."""
    arguments = ("compat.GroupSteps", scope, "stream", "group", str(segments))
    with _started(client, controller, *arguments) as process:
        yield GroupSteps(process)


@contextmanager
def open_program(
    client: JavaClient, controller: str, main_class: str, *arguments: str
) -> Iterator[LineProgram]:
    """Run a program of the official client that takes steps."""
    with _started(client, controller, main_class, *arguments) as process:
        yield LineProgram(process)


@contextmanager
def _started(
    client: JavaClient, controller: str, main_class: str, *arguments: str
) -> Iterator[subprocess.Popen[str]]:
    """Run a program, which ends when its input does."""
    command = client.command(main_class, *arguments, controller=controller)
    with subprocess.Popen(
        tied(command), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        try:
            yield process
        finally:
            assert process.stdin is not None
            process.stdin.close()
            process.wait(ANSWER_SECONDS_MAX)


class SharingReader:
    """A reader that reads on and on. ``lines`` has its events, as they come."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process
        self.lines: list[str] = []
        self._taker = threading.Thread(target=self._take)
        assert process.stdout is not None
        assert process.stdout.readline() == "online\n"
        self._taker.start()

    def kill(self) -> None:
        """End it as ``kill -9`` does: it stays in the group."""
        self._process.kill()
        self._taker.join()

    def leave(self) -> None:
        """Let it leave the group."""
        assert self._process.stdin is not None
        self._process.stdin.write("\n")
        self._process.stdin.flush()
        self._process.wait(ANSWER_SECONDS_MAX)
        self._taker.join()

    def _take(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self.lines.append(line.rstrip("\n"))


@contextmanager
def open_sharing_reader(
    client: JavaClient, controller: str, scope: str, group: str, reader: str
) -> Iterator[SharingReader]:
    """Let a Java reader join a group; any thread may open it."""
    command = client.command("compat.SharingReader", scope, group, reader, controller=controller)

    def start() -> subprocess.Popen[str]:
        return subprocess.Popen(
            tied(command), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    with start_from_any_thread(start) as process:
        try:
            yield SharingReader(process)
        finally:
            process.kill()
