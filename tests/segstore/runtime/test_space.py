"""Warnings of disks that fill up: levels, rates, inodes, and one warning for one disk."""

from __future__ import annotations

from collections.abc import Sequence
from math import inf
from pathlib import Path

import pytest
import trio
from structlog.testing import capture_logs
from trio.testing import MockClock

from segstore.runtime.space import (
    LOOK_SECONDS,
    Amount,
    Space,
    SpaceWatch,
    describe_seconds,
    measure_space,
)

JOURNAL, STORAGE = Path("/data/journal"), Path("/data/storage")


def watch_of(uses: Sequence[int], *directories: Path) -> SpaceWatch:
    """Return a watch of a disk of 1,000 bytes whose used bytes are these, look by look."""
    left = list(uses)

    def measure(directory: Path) -> Space:
        used = left[0]
        if directory == directories[-1] and len(left) > 1:
            left.pop(0)
        return Space(1, Amount(used, 1000 - used), Amount(0, 0))

    return SpaceWatch(directories, measure=measure)


async def warnings_of(watch: SpaceWatch, looks: int) -> list[dict[str, object]]:
    with capture_logs() as lines:
        for _ in range(looks):
            watch.warn(watch.measure())
            await trio.sleep(LOOK_SECONDS)
    return [dict(line) for line in lines if line["log_level"] == "warning"]


async def test_each_level_is_warned_of_once_with_the_time_left(autojump_clock: MockClock) -> None:
    found = await warnings_of(watch_of([700, 800, 810, 910, 960, 970], JOURNAL), 6)
    assert [line["used_percent"] for line in found] == [80, 91, 96]
    assert {line["directory"] for line in found} == {"/data/journal"}
    assert [line["left"] for line in found] == ["200 bytes", "90 bytes", "40 bytes"]
    # 100 bytes in 10 s: 200 bytes in 20 s; 210 in 30 s: 90 in 12 s.
    assert [line["full_in"] for line in found][:2] == ["0 min 20 s", "0 min 12 s"]


async def test_a_disk_that_is_full_at_once_is_warned_of_at_its_level_only(
    autojump_clock: MockClock,
) -> None:
    [line] = await warnings_of(watch_of([1000], JOURNAL), 3)
    assert line["used_percent"] == 100
    assert line["full_in"] == describe_seconds(inf)


async def test_a_disk_that_got_room_is_warned_of_again(autojump_clock: MockClock) -> None:
    found = await warnings_of(watch_of([910, 890, 910, 700, 910], JOURNAL), 5)
    assert [line["used_percent"] for line in found] == [91, 91]


async def test_directories_on_one_disk_have_one_warning(autojump_clock: MockClock) -> None:
    [line] = await warnings_of(watch_of([910, 910], JOURNAL, STORAGE), 2)
    assert line["directory"] == "/data/journal, /data/storage"


async def test_inodes_are_watched_like_bytes(autojump_clock: MockClock) -> None:
    watch = SpaceWatch(
        [STORAGE], measure=lambda _: Space(1, Amount(1, 999), Amount(used=95, free=5))
    )
    [line] = await warnings_of(watch, 2)
    assert line["left"] == "5 inodes"


async def test_a_disk_that_cannot_be_asked_ends_nothing(autojump_clock: MockClock) -> None:
    answers: list[Space | OSError] = [OSError(5, "gone"), Space(1, Amount(95, 5), Amount(0, 0))]

    def measure(directory: Path) -> Space:
        answer = answers.pop(0) if len(answers) > 1 else answers[0]
        if isinstance(answer, OSError):
            raise answer
        return answer

    [line] = await warnings_of(SpaceWatch([STORAGE], measure=measure), 3)
    assert line["used_percent"] == 95


def test_a_real_disk_is_measured(tmp_path: Path) -> None:
    space = measure_space(tmp_path)
    assert space.device == tmp_path.stat().st_dev
    assert space.bytes.used > 0
    assert 0 < space.bytes.used_share < 1


@pytest.mark.parametrize(
    ("seconds", "words"),
    [(5.0, "0 min 5 s"), (3 * 3600 + 125, "3 h 2 min"), (2 * 86400 + 3600, "2 d 1 h")],
)
def test_times_are_told_with_two_units(seconds: float, words: str) -> None:
    assert describe_seconds(seconds) == words
