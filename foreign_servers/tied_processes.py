"""Commands whose processes end with the process that starts them, however that one ends.

Owns: ``tied``, and the thread that starts what other threads ask for. All that is started beside
the product is started by it, with ``subprocess.Popen``. The product's own children do the same in
``pravega_admin.supervisor.child_protocol``.

The kernel sends its signal when the *thread* ends that started a process, and threads of a pool end
when they have nothing to do. So only two threads start processes: the main one, and one that lives
as long as this process.

Invariants:
1. When the process that starts it is killed, at any moment, a command ends, or it never begins.
   Held by ``test_a_command_ends_with_the_process_that_started_it`` and
   ``test_a_command_whose_parent_has_ended_never_begins``.
2. Outside of ``tests`` no ``Popen`` is without it. Held by ``test_every_process_is_tied``.
3. When the thread ends that asked for a command, the command goes on. Held by
   ``test_a_command_outlives_the_thread_that_asked_for_it``.
"""

import os
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TypeVar

TIED = Path(__file__).resolve().parent / "tied"
Result = TypeVar("Result")

LASTING = "starts-processes"
# A thread of this executor ends when the interpreter does.
_EXECUTOR = ThreadPoolExecutor(1, thread_name_prefix=LASTING)


def tied(command: Sequence[str]) -> list[str]:
    """Return the command that this process starts so that it ends with this process.

    Raises ``RuntimeError`` in a thread that may end before the process does.
    """
    if not _may_start():
        name = threading.current_thread().name
        raise RuntimeError(f"what {name} starts ends with it: use start_from_any_thread")
    return [str(TIED), str(os.getpid()), *command]


def start_from_any_thread(start: Callable[[], Result]) -> Result:
    """Return what ``start`` returns, called where processes may be started."""
    return start() if _may_start() else _EXECUTOR.submit(start).result()


def _may_start() -> bool:
    """Return whether the present thread lives as long as the process."""
    thread = threading.current_thread()
    return thread is threading.main_thread() or thread.name.startswith(LASTING)
