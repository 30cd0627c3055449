"""The supervisor's program, in place of the command line: ``-m pravega_admin supervise TASK``.

Owns: the transfer of the first children from the command line, which has started them. It replaces
its own program (``exec``): the process, its id, its children and its descriptors stay, and the
memory of the command line is freed.

Invariants:
1. This module imports almost nothing, see ``supervisor``.
2. A failure is one sentence on stderr and an exit code, as in the command line; with its
   ``--debug``, a traceback.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from types import FrameType
from typing import TextIO

from pravega_admin.errors import EXIT_OK, exit_code_of, report_error
from pravega_admin.run_directory import SUPERVISOR, RunDirectory
from pravega_admin.service_manager import notify_ready
from pravega_admin.supervisor.child_process import ChildProcess, ChildSpec
from pravega_admin.supervisor.supervisor import Supervisor


def become_supervisor(
    specs: Sequence[ChildSpec],
    started: Sequence[ChildProcess],
    *,
    directory: RunDirectory,
    log_file: int | None,
    welcome: str,
    began: float,
    debug: bool = False,
) -> None:
    """Replace this process by the supervisor of the children. Returns only by an error.

    ``welcome`` is printed when they are ready, and then how long that took since ``began``.
    """
    task = {
        "run_directory": os.fspath(directory.path),
        "lock": directory.lock_descriptor,
        "log_file": log_file,
        "welcome": welcome,
        "began": began,
        "debug": debug,
        "children": [
            {
                "name": spec.name,
                "command": spec.command,
                "drain_seconds": spec.drain_seconds,
                "pid": process.pid,
                "verdict_pipe": process.verdict_pipe,
            }
            for spec, process in zip(specs, started, strict=True)
        ],
    }
    for descriptor in _descriptors(task):
        os.set_inheritable(descriptor, True)
    sys.stdout.flush()
    sys.stderr.flush()
    command = [sys.executable, "-m", "pravega_admin", "supervise", json.dumps(task)]
    os.execv(sys.executable, command)


def main(arguments: Sequence[str]) -> int:
    """Supervise until a signal ends the supervisor, and return the exit code."""
    task = json.loads(arguments[0])
    for descriptor in _descriptors(task):
        os.set_inheritable(descriptor, False)
    directory = RunDirectory(task["run_directory"], task["lock"])
    supervisor = Supervisor(
        [
            ChildSpec(child["name"], tuple(child["command"]), child["drain_seconds"])
            for child in task["children"]
        ],
        directory=directory,
        report=lambda sentence: _print_message(f"segstore: {sentence}"),
        log_file=task["log_file"],
        started=[ChildProcess(child["pid"], child["verdict_pipe"]) for child in task["children"]],
    )
    signals = 0

    def end(number: int, frame: FrameType | None) -> None:
        nonlocal signals
        signals += 1
        if signals == 1:
            _print_message("stopping; press Ctrl-C again to stop at once")
            supervisor.stop()
        else:
            supervisor.kill_all()

    signal.signal(signal.SIGTERM, end)
    signal.signal(signal.SIGINT, end)

    def welcome() -> None:
        seconds = time.monotonic() - task["began"]
        _print(f"{task['welcome']}\n\nsegstore is ready in {seconds:.2f} s", sys.stdout)
        notify_ready()

    try:
        supervisor.run(on_ready=welcome)
    except Exception as error:
        if not task["debug"]:
            return report_error(error)
        sys.excepthook(type(error), error, error.__traceback__)
        return exit_code_of(error)
    finally:
        directory.remove_pid(SUPERVISOR)
    return EXIT_OK


def _descriptors(task: Mapping[str, object]) -> list[int]:
    """Return the descriptors that a task waits for."""
    children = task["children"]
    assert isinstance(children, list)
    found = [task["lock"], task["log_file"], *(child["verdict_pipe"] for child in children)]
    return [descriptor for descriptor in found if isinstance(descriptor, int)]


def _print_message(text: str) -> None:
    _print(text, sys.stderr)


def _print(text: str, stream: TextIO) -> None:
    """Print a line, or drop it if the stream cannot accept it, such as a file on a full disk."""
    with suppress(OSError):
        print(text, file=stream, flush=True)
