"""A reader group of the official Java client that takes one step at a time.

Owns: ``GroupSteps``, the lines to and from the program of the same name.
"""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager

from foreign_servers.deadlines import scale
from foreign_servers.tied_processes import tied

from compat_harness.java import JavaClient

ANSWER_SECONDS_MAX = scale(60.0)


class GroupSteps:
    """A group of one reader, and a writer; both are of the official client."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process
        assert self._answer() == "online"

    def step(self, line: str) -> str:
        """Let the official client take a step; return its answer."""
        assert self._process.stdin is not None
        self._process.stdin.write(line + "\n")
        self._process.stdin.flush()
        return self._answer()

    def read(self, count: int) -> list[int]:
        """Return the numbers of the next events, sorted; the reader may have to be made again."""
        text = self.step(f"read {count}")
        if text == "again":
            text = self.step(f"read {count}")
        return sorted(int(each.removeprefix("event-")) for each in text.split(",") if each)

    def _answer(self) -> str:
        assert self._process.stdout is not None
        return self._process.stdout.readline().rstrip("\n")


@contextmanager
def open_group(
    client: JavaClient, controller: str, scope: str, *, segments: int
) -> Iterator[GroupSteps]:
    """Make the stream ``stream`` and the group ``group`` in a scope, and read with the group."""
    command = client.command(
        "compat.GroupSteps", scope, "stream", "group", str(segments), controller=controller
    )
    with subprocess.Popen(
        tied(command), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        try:
            yield GroupSteps(process)
        finally:
            assert process.stdin is not None
            process.stdin.close()
            process.wait(ANSWER_SECONDS_MAX)
