"""The ``segstore`` command's entry.

Owns: what happens before the command line is even parsed.

Invariants:
1. Nothing slow is imported before the server processes of a store that is about to be started.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

HELP_OPTIONS = frozenset({"-h", "--help"})


def main() -> None:
    """The console script."""
    if starts_store(sys.argv[1:]):
        from pravega_admin.child_protocol import CONTROLLER, SEGMENT_STORE
        from pravega_admin.early_children import start_early

        start_early([SEGMENT_STORE, CONTROLLER])
    from pravega_admin.verbs import app

    app(prog_name="segstore")


def starts_store(arguments: Sequence[str]) -> bool:
    """Whether the command line starts server processes, unless something is wrong with it."""
    return list(arguments[:1]) == ["standalone"] and HELP_OPTIONS.isdisjoint(arguments)
