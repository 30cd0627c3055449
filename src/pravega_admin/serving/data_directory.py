"""Makes a process the supervisor of a standalone store's data directory.

Owns: the lock and the checks for that.

Invariants:
1. When a store uses the directory, a second supervisor is refused. Held by
   ``test_a_directory_in_use_is_refused_with_its_user``.
2. A process that still has the lock, but is about to end, is waited for. Held by
   ``test_a_process_that_ends_with_the_lock_is_waited_for``.
3. A directory with other contents is refused and not changed. Held by
   ``test_a_directory_of_something_else_is_refused_and_left_alone``.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

from pravega_admin.errors import cannot_start
from pravega_admin.output.output import print_message
from pravega_admin.supervisor.run_directory import SUPERVISOR, RunDirectory
from segstore.errors import DataDirectoryError
from segstore.ownership.data_directory import DataDirectory
from segstore.runtime.refused_files import reason_of


def tell_wait(sentence: str) -> None:
    """Tell the user that a start waits."""
    print_message(f"segstore: {sentence}")


@contextlib.contextmanager
def open_run_directory(
    data_dir: Path, *, container_count: int = 4, journal_count: int = 1
) -> Iterator[RunDirectory]:
    """Lock a data directory as its supervisor, and yield its run directory; make a missing one with
    ``journal_count`` journals.

    Raises ``ConfigurationError`` when it cannot be used, or is in use, and ``NoRoomError`` when its
    disk is full.
    """
    with contextlib.ExitStack() as stack:
        try:
            directory = DataDirectory.open(
                data_dir, container_count=container_count, journal_count=journal_count
            )
            descriptor = stack.enter_context(directory.lock(SUPERVISOR, tell=tell_wait))
        except DataDirectoryError as error:
            raise cannot_start(str(error), error.__cause__) from error
        run = RunDirectory(data_dir / "run", descriptor)
        try:
            (data_dir / "run").mkdir(exist_ok=True)
            run.write_pid(SUPERVISOR, os.getpid())
        except OSError as error:
            raise cannot_start(
                f"data directory {data_dir} cannot be written: {reason_of(error, data_dir)}", error
            ) from error
        stack.callback(run.remove_pid, SUPERVISOR)
        yield run
