"""The parts that a benchmark has measured, so that one that is interrupted goes on.

1. A part is what is measured without a stop: a row of a round with all its servers, or a set-up.
   The part in which a run was interrupted is measured anew: a ratio has both of its sides from one
   run.
2. A file serves one commit and one plan for a day. Anything else begins anew.
3. The file is removed when the benchmark ends; what it found is in its table and report then.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from benchmarks.comparison import ComparedRow, Outcome
from benchmarks.machine import describe_commit
from benchmarks.record import outcome_from, outcome_to_document

UNFINISHED = Path(__file__).parent / "results" / "unfinished"
SECONDS_MAX = 24 * 3600.0
"""Maximum age of a part that a run goes on from, in seconds."""

ServerOutcomes = Mapping[str, Sequence[Outcome]]


class FinishedParts:
    """The parts that were measured, by name, kept in a file until ``end``.

    Without a path nothing is kept, and a part that comes twice is measured twice: the small runs of
    tests end before anybody interrupts them, and where servers stay up, a row comes once for each.
    """

    def __init__(self, path: Path | None, plan: object = "") -> None:
        self._path = path
        self._key = f"{describe_commit()}: {plan!r}"
        self._documents: dict[str, Any] = {}
        if path is not None:
            self._read(path)

    def outcomes(
        self, part: str, measure: Callable[[], Iterable[tuple[str, str, Outcome]]]
    ) -> list[tuple[str, str, Outcome]]:
        """Return the outcomes of a part, each with its row and server; measure them if need be."""
        if part in self._documents:
            return [
                (row, server, outcome_from(each)) for row, server, each in self._documents[part]
            ]
        found = list(measure())
        self._add(part, [(row, server, outcome_to_document(each)) for row, server, each in found])
        return found

    def compared(self, part: str, measure: Callable[[], list[ComparedRow]]) -> list[ComparedRow]:
        """Return the rows of a part; measure them if need be."""
        if part in self._documents:
            return msgspec.convert(self._documents[part], list[ComparedRow])
        found = measure()
        self._add(part, msgspec.to_builtins(found))
        return found

    def end(self) -> None:
        """Remove the file: all parts are measured and reported."""
        if self._path is not None:
            self._path.unlink(missing_ok=True)

    def _read(self, path: Path) -> None:
        """Take over the parts of an interrupted run of the same plan; otherwise begin a file."""
        try:
            lines = path.read_text().splitlines()
            age = time.time() - path.stat().st_mtime
        except FileNotFoundError:
            lines, age = [], 0.0
        if lines and age <= SECONDS_MAX and json.loads(lines[0]) == self._key:
            for line in lines[1:]:
                try:
                    part, document = json.loads(line)
                except json.JSONDecodeError:
                    break  # the last line of a run that was killed while it wrote
                self._documents[part] = document
        if self._documents:
            names = ", ".join(self._documents)
            print(f"going on after {names}; remove {path} to begin anew", file=sys.stderr)
        path.parent.mkdir(parents=True, exist_ok=True)
        whole = [json.dumps(each) for each in (self._key, *self._documents.items())]
        path.write_text("".join(f"{line}\n" for line in whole))

    def _add(self, part: str, document: Any) -> None:
        if self._path is None:
            return
        self._documents[part] = document
        with self._path.open("a") as file:
            file.write(json.dumps([part, document]) + "\n")
            file.flush()
            os.fsync(file.fileno())


def keep_parts(benchmark: str, plan: object, *, small: bool = False) -> FinishedParts:
    """Return the finished parts of a benchmark's plan; a small run keeps none."""
    return FinishedParts(None if small else UNFINISHED / f"{benchmark}.jsonl", plan)
