"""A benchmark that is interrupted goes on with what it has not measured."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from benchmarks.comparison import Metric, Outcome, compare
from benchmarks.finished_parts import SECONDS_MAX, FinishedParts
from benchmarks.streams.rows import DURABLE, OURS, SMALL
from benchmarks.streams.run import run
from foreign_servers.peer import PeerFailedError

RATE = Metric("published", "events/s", "higher")
FOUND = [
    ("L1", "ours", Outcome({RATE: 10.5}, other_cpu_share=0.25)),
    ("L1", "kafka", Outcome({RATE: None}, failure="it ended", remarks=("a remark",))),
]


def refuse() -> list[Any]:
    raise AssertionError("it was measured already")


def test_a_part_is_measured_once(tmp_path: Path) -> None:
    path = tmp_path / "unfinished" / "streams.jsonl"
    first = FinishedParts(path, "a plan")
    assert first.outcomes("L1 1", lambda: iter(FOUND)) == FOUND
    again = FinishedParts(path, "a plan")
    assert again.outcomes("L1 1", refuse) == FOUND
    assert again.outcomes("L2 1", lambda: FOUND[:1]) == FOUND[:1]
    assert FinishedParts(path, "a plan").outcomes("L2 1", refuse) == FOUND[:1]


def test_rows_are_kept_too(tmp_path: Path) -> None:
    path = tmp_path / "scale.jsonl"
    rows = compare(
        "S1",
        ours=[Outcome({RATE: 3.0})],
        peer=[Outcome({RATE: 2.0})],
        reaches={"published": 1.0},
        peer_name="few",
    )
    assert FinishedParts(path).compared("S1", lambda: rows) == rows
    assert FinishedParts(path).compared("S1", refuse) == rows


def test_another_plan_begins_anew(tmp_path: Path) -> None:
    path = tmp_path / "streams.jsonl"
    FinishedParts(path, "a plan").outcomes("L1 1", lambda: FOUND)
    assert FinishedParts(path, "another").outcomes("L1 1", list) == []
    assert FinishedParts(path, "a plan").outcomes("L1 1", lambda: FOUND[:1]) == FOUND[:1]


def test_a_run_of_last_week_is_not_continued(tmp_path: Path) -> None:
    path = tmp_path / "streams.jsonl"
    FinishedParts(path, "a plan").outcomes("L1 1", lambda: FOUND)
    old = path.stat().st_mtime - SECONDS_MAX - 60
    os.utime(path, (old, old))
    assert FinishedParts(path, "a plan").outcomes("L1 1", list) == []


def test_a_line_that_was_cut_off_is_measured_again(tmp_path: Path) -> None:
    path = tmp_path / "streams.jsonl"
    parts = FinishedParts(path, "a plan")
    parts.outcomes("L1 1", lambda: FOUND)
    parts.outcomes("L2 1", lambda: FOUND)
    path.write_bytes(path.read_bytes()[:-20])
    again = FinishedParts(path, "a plan")
    assert again.outcomes("L1 1", refuse) == FOUND
    assert again.outcomes("L2 1", list) == []
    assert FinishedParts(path, "a plan").outcomes("L2 1", refuse) == []


def test_nothing_is_left_of_a_run_that_ends(tmp_path: Path) -> None:
    path = tmp_path / "streams.jsonl"
    parts = FinishedParts(path, "a plan")
    parts.outcomes("L1 1", lambda: FOUND)
    parts.end()
    assert not path.exists()


class Peer:
    """A server that never starts, and is interrupted at its second start."""

    name = "a server"

    def __init__(self, *, interrupted: bool) -> None:
        self.starts: list[str] = []
        self._interrupted = interrupted

    def prepare(self) -> None:
        """Prepare nothing."""

    def reserve(self) -> str:
        return "127.0.0.1:1"

    def start(self, directory: Path) -> Any:
        self.starts.append(directory.name)
        if self._interrupted and len(self.starts) == 2:
            raise KeyboardInterrupt
        raise PeerFailedError("not today")

    def stop(self) -> None:
        """Stop nothing."""


@contextmanager
def interrupted() -> Iterator[None]:
    with pytest.raises(KeyboardInterrupt):
        yield


def test_an_interrupted_run_of_streams_goes_on_with_the_row_it_was_in(tmp_path: Path) -> None:
    plan = replace(SMALL, rows=("L1", "L2", "L3"), peers=(), fresh=True)
    path = tmp_path / "streams.jsonl"
    first, second = Peer(interrupted=True), Peer(interrupted=False)
    data = tmp_path / "data"
    with interrupted():
        run(plan, servers={OURS: first}, directory=data, finished=FinishedParts(path, plan))
    assert first.starts == ["1-L1-ours", "1-L2-ours"]
    measured = run(plan, servers={OURS: second}, directory=data, finished=FinishedParts(path, plan))
    assert second.starts == ["1-L2-ours", "1-L3-ours"]
    assert [measured.of(row, OURS)[0].failure for row in plan.rows] == ["not today"] * 3


def test_servers_that_are_not_fresh_have_outcomes_of_their_own(tmp_path: Path) -> None:
    plan = replace(SMALL, rows=("L1", "L2"), peers=(DURABLE,), fresh=False)
    servers = {OURS: Peer(interrupted=False), DURABLE: Peer(interrupted=False)}
    measured = run(plan, servers=servers, directory=tmp_path, finished=FinishedParts(None))
    assert servers[DURABLE].starts == ["1-durable", "1-durable"]
    for row in plan.rows:
        assert [len(measured.of(row, server)) for server in servers] == [1, 1]
