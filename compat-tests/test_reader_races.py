"""Counts reads of official readers that wait for their time-out beside data, or get two events.

The clients have a race that a quick reply meets; how replies to reads are paced decides how often.
The short form makes few tries here. With --full, a hundred are made here and on the original, and
none of the races may be met more often here.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from compat_harness.java import NEWEST, JavaClient, JavaError
from compat_harness.original import run_original
from foreign_servers.deadlines import scale

TRIES_VARIABLE = "SEGSTORE_COMPAT_TRIES"
TRIES, TRIES_FULL = 8, 100
SHARE_MAX = 0.25
"""Of few tries on a busy machine; without pacing it was half of them after a truncation."""
MORE_MAX = 1
"""Of a hundred tries, what both servers may differ by for no reason."""
RUN_SECONDS_MAX = scale(1500.0)
OLDEST = "0.9.0"
QUICK_EVENTS = str(Path(__file__).parent / "python/quick_events.py")
TRIES_SECONDS_MAX = scale(300.0)
HANGS_MAX = 2
"""Of the official client, in which a reader that leaves may wait for ever on either server."""

pytestmark = [pytest.mark.proof, pytest.mark.compat, pytest.mark.timeout(2 * RUN_SECONDS_MAX)]


@pytest.fixture(scope="session")
def tries(pytestconfig: pytest.Config) -> int:
    """The number of tries of each race."""
    usual = TRIES_FULL if pytestconfig.getoption("--full") else TRIES
    return int(os.environ.get(TRIES_VARIABLE, usual))


@pytest.fixture(scope="session")
def original(
    pytestconfig: pytest.Config, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[str]:
    """The original's standalone server, with --full."""
    if not pytestconfig.getoption("--full"):
        pytest.skip("compared with the original in the full form")
    with run_original(tmp_path_factory.mktemp("original")) as address:
        yield address


def count_sleeps(version: str, controller_uri: str, tries: int) -> dict[str, int]:
    """Count the tries of each race in which a reader slept."""
    try:
        client = JavaClient.build(version)
    except JavaError as error:
        pytest.fail(str(error), pytrace=False)
    command = client.command("compat.ReaderRaces", str(tries), controller=controller_uri)
    done = subprocess.run(
        command,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=RUN_SECONDS_MAX,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-5_000:]
    lines = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    print(version, controller_uri, lines)
    return {line["race"]: line["slept"] for line in lines}


@pytest.mark.parametrize("version", [NEWEST, OLDEST])
def test_readers_do_not_sleep_beside_data(
    version: str, controller_uri: str, tries: int, pytestconfig: pytest.Config
) -> None:
    if version != NEWEST and not pytestconfig.getoption("--full"):
        pytest.skip("with the newest client in the short form")
    slept = count_sleeps(version, controller_uri, tries)
    assert len(slept) == 3
    assert max(slept.values()) <= SHARE_MAX * tries, slept


@pytest.mark.parametrize("version", [NEWEST, OLDEST])
def test_no_race_is_met_more_often_than_on_the_original(
    version: str, controller_uri: str, original: str, tries: int
) -> None:
    theirs = count_sleeps(version, original, tries)
    ours = count_sleeps(version, controller_uri, tries)
    assert all(ours[race] <= theirs[race] + MORE_MAX for race in theirs), (ours, theirs)


# ---- Two quick events ----------------------------------------------------------------------------


def count_split_events(controller_uri: str, tries: int) -> int:
    """Count the tries in which the Python client gets two events written together in two slices.

    The client is a process: among thousands of calls one may never return, on either server. Then
    the tries that are left are made by another process.
    """
    pytest.importorskip(
        "pravega_client", reason="there is no wheel of the official Python client for this Python"
    )
    split: list[str] = []
    for _ in range(1 + HANGS_MAX):
        command = [sys.executable, QUICK_EVENTS, controller_uri, str(tries - len(split))]
        try:
            done = subprocess.run(
                command, stdout=subprocess.PIPE, timeout=TRIES_SECONDS_MAX, check=True
            )
        except subprocess.TimeoutExpired as error:
            split += (error.stdout or b"").decode().split()
            print("the Python client hung after", len(split), "tries:", controller_uri)
            continue
        split += done.stdout.decode().split()
        assert len(split) == tries
        print("two quick events in two slices:", controller_uri, split.count("1"), "of", tries)
        return split.count("1")
    pytest.fail(f"the Python client hung more than {HANGS_MAX} times on {controller_uri}")


def test_two_quick_events_are_split_no_more_often_than_on_the_original(
    controller_uri: str, original: str, tries: int
) -> None:
    theirs = count_split_events(original, tries)
    ours = count_split_events(controller_uri, tries)
    assert ours <= theirs + MORE_MAX, (ours, theirs)
