"""The supervisor's program, in place of the command line: ``-m pravega_admin supervise TASK``.

Owns: the transfer of the first children from the command line, which has started them. It replaces
its own program (``exec``): the process, its id, its children and its descriptors stay, and the
memory of the command line is freed.

Invariants:
1. No event loop and none of the slow standard modules is imported: the supervisor keeps its imports
   in memory as long as a store runs. Held by ``test_a_supervisor_has_little_in_memory``.
2. A failure is one sentence on stderr and an exit code, as in the command line. With ``--debug`` it
   has a traceback. Held by ``test_a_traceback_is_shown_after_the_exec_when_it_is_asked_for``.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from collections.abc import Mapping, Sequence
from types import FrameType

from pravega_admin.errors import EXIT_OK, exit_code_of, report_error
from pravega_admin.supervisor.child_process import ChildProcess, ChildSpec
from pravega_admin.supervisor.run_directory import SUPERVISOR, RunDirectory
from pravega_admin.supervisor.service_manager import notify_ready
from pravega_admin.supervisor.supervisor import Supervisor
from pravega_admin.supervisor.terminal import print_at_once


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
        report=lambda sentence: print_at_once(f"segstore: {sentence}", sys.stderr),
        log_file=task["log_file"],
        started=[ChildProcess(child["pid"], child["verdict_pipe"]) for child in task["children"]],
    )
    end_by_signals(supervisor)

    def welcome() -> None:
        seconds = time.monotonic() - task["began"]
        print_at_once(f"{task['welcome']}\n\nsegstore is ready in {seconds:.2f} s", sys.stdout)
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
    print_at_once("stopped", sys.stderr)
    return EXIT_OK


def end_by_signals(supervisor: Supervisor) -> None:
    """Let the first SIGTERM or Ctrl-C stop the supervisor, and a second one kill its children."""
    signals = 0

    def end(number: int, frame: FrameType | None) -> None:
        nonlocal signals
        signals += 1
        if signals == 1:
            print_at_once("stopping; press Ctrl-C again to stop at once", sys.stderr)
            supervisor.stop()
        else:
            supervisor.kill_all()

    signal.signal(signal.SIGTERM, end)
    signal.signal(signal.SIGINT, end)


def _descriptors(task: Mapping[str, object]) -> list[int]:
    """Return the descriptors that a task waits for."""
    children = task["children"]
    assert isinstance(children, list)
    found = [task["lock"], task["log_file"], *(child["verdict_pipe"] for child in children)]
    return [descriptor for descriptor in found if isinstance(descriptor, int)]
