"""Results of the compatibility tests: one line of JSON for each test, client, version and server.

Owns: what a line says, and the file of lines that the documents are made of.

A test is written once for each server it ran on. ``docs/compatibility.jsonl`` holds the last result
of each; ``compat_harness.matrix`` merges new lines into it and makes the documents.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import StrEnum
from pathlib import Path

import msgspec


class ServerName(StrEnum):
    """The server on which a test ran."""

    OURS = "segstore"
    ORIGINAL = "original"


class Outcome(StrEnum):
    """The kind of result of a test."""

    PASSED = "passed"
    FAILED = "failed"
    SKIPPED = "skipped"


class Result(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The result of one test.

    ``client``: "Java", "Python", ...; ``version``: the client's. ``api``: the row of the matrix.
    ``race``: the test meets a known race inside the client, and is counted apart.
    ``note``: why it failed or was skipped, one line.
    ``calls``: names of the controller's RPCs that were answered while the test ran, if they were
    counted. ``seconds``: how long it took, on a machine that may have been busy.
    """

    server: ServerName
    client: str
    version: str
    api: str
    suite: str
    test: str
    result: Outcome
    seconds: float = 0.0
    race: bool = False
    note: str = ""
    calls: tuple[str, ...] = ()

    @property
    def key(self) -> tuple[str, str, str, str, str]:
        """Return the key by which a later result of the same test replaces this one."""
        return (self.client, self.version, self.suite, self.test, self.server)

    @property
    def run(self) -> tuple[str, str, str, str]:
        """Return the key of the suite: the results of a suite are replaced together."""
        return (self.client, self.version, self.suite, self.server)


def read_results(path: Path) -> list[Result]:
    """Read the results in a file; return none if there is no such file."""
    if not path.exists():
        return []
    decoder = msgspec.json.Decoder(Result)
    return [decoder.decode(line) for line in path.read_bytes().splitlines() if line]


def append_results(path: Path, results: Iterable[Result]) -> None:
    """Add lines to a file, in one piece: other processes may add theirs at the same time."""
    lines = b"".join(msgspec.json.encode(result) + b"\n" for result in results)
    with path.open("ab", buffering=0) as file:
        file.write(lines)


def merge_results(known: Iterable[Result], new: Iterable[Result]) -> list[Result]:
    """Merge the known results with new ones, in order: a suite that was run again has its new
    results."""
    new = list({result.key: result for result in new}.values())
    again = {result.run for result in new}
    merged = [result for result in known if result.run not in again] + new
    return sorted(merged, key=lambda result: result.key)


def write_results(path: Path, results: Iterable[Result]) -> None:
    """Replace a file."""
    lines = [msgspec.json.encode(result) + b"\n" for result in results]
    path.write_bytes(b"".join(lines))
