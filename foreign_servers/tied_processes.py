"""Commands whose processes end with the process that starts them, however that one ends.

Owns: ``tied``. All that is started beside the product is started by it, with ``subprocess.Popen``.
The product's own children do the same in ``pravega_admin.supervisor.child_protocol``.

The kernel sends its signal when the *thread* ends that started a process. So the thread that starts
one lives as long as it should.

Invariants:
1. When the process that starts it is killed, at any moment, a command ends, or it never begins.
   Held by ``test_a_command_ends_with_the_process_that_started_it`` and
   ``test_a_command_whose_parent_has_ended_never_begins``.
2. Outside of ``tests`` no ``Popen`` is without it. Held by ``test_every_process_is_tied``.
"""

import os
from collections.abc import Sequence
from pathlib import Path

TIED = Path(__file__).resolve().parent / "tied"


def tied(command: Sequence[str]) -> list[str]:
    """Return the command that this process starts so that it ends with this process."""
    return [str(TIED), str(os.getpid()), *command]
