"""A command whose output is broken ends as other tools do: with a sentence, or quietly."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from ..conftest import Standalone

pytestmark = pytest.mark.processes

PRINTED_AT_ONCE = [
    ["version"],
    ["--help"],
    pytest.param(["stream", "create", "--help"], marks=pytest.mark.proof),
]

NO_ROOM = "segstore: the output cannot be written: No space left on device\n"


def run_segstore(arguments: list[str], **streams: int) -> subprocess.CompletedProcess[str]:
    """Run the command with some of its standard streams replaced."""
    given: dict[str, int] = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, **streams}
    command = [sys.executable, "-m", "pravega_admin", *arguments]
    return subprocess.run(command, text=True, timeout=60, check=False, **given)  # type: ignore[call-overload, no-any-return]


@pytest.mark.parametrize("arguments", PRINTED_AT_ONCE)
def test_output_on_a_full_disk_is_one_sentence_and_exit_code_1(arguments: list[str]) -> None:
    with open("/dev/full", "w") as full:
        done = run_segstore(arguments, stdout=full.fileno())
    assert (done.returncode, done.stderr) == (1, NO_ROOM)


@pytest.mark.parametrize("arguments", PRINTED_AT_ONCE)
def test_a_reader_that_has_gone_ends_a_command_quietly(arguments: list[str]) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    try:
        done = run_segstore(arguments, stdout=writer)
    finally:
        os.close(writer)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("closed", [">&-", ">&- 2>/dev/full"])
def test_output_that_was_never_open_is_an_error(closed: str) -> None:
    done = subprocess.run(
        ["/bin/sh", "-c", f"exec {sys.executable} -m pravega_admin version {closed}"],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 1
    told = "segstore: the output cannot be written: Bad file descriptor\n"
    assert done.stderr == ("" if "full" in closed else told)


@pytest.mark.parametrize("broken", ["2>/dev/full", "2>&-"])
def test_messages_that_cannot_be_written_change_no_exit_code(broken: str) -> None:
    command = f"exec {sys.executable} -m pravega_admin scope list -c tcp://127.0.0.1:9 {broken}"
    done = subprocess.run(
        ["/bin/sh", "-c", command], capture_output=True, text=True, timeout=60, check=False
    )
    assert (done.returncode, done.stdout, done.stderr) == (5, "", "")


PRINTING = [
    "scope list",
    "stream list demo",
    "stream describe demo/full -o json",
    "read demo/full",
    "read demo/full -o json",
    "table list demo -o json",
    "group list demo -o json",
    "transaction list demo/full -o json",
]


@pytest.mark.proof
def test_data_on_a_full_disk_is_one_sentence_and_exit_code_1(
    store: Standalone, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SEGSTORE_CONTROLLER", store.controller)
    for setup in ("scope create demo", "stream create demo/full", f"write demo/full {__file__}"):
        assert run_segstore(setup.split()).returncode == 0
    for command in PRINTING:
        with open("/dev/full", "w") as full:
            done = run_segstore(command.split(), stdout=full.fileno())
        assert (command, done.returncode, done.stderr) == (command, 1, NO_ROOM)
