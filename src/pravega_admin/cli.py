"""The ``segstore`` command's entry.

Owns: the steps before the command line is parsed.

Invariants:
1. With the arguments of ``segstore standalone``, the server processes are started before the
   command line is imported. For other arguments no process is started. Held by
   ``test_processes_are_started_early_for_a_store_alone``.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence

HELP_OPTIONS = frozenset({"-h", "--help"})


def main() -> None:
    """Run the ``segstore`` command; the console script calls this."""
    try:
        run_with_checked_streams()
    except KeyboardInterrupt as error:
        # Ctrl-C came while modules were imported. Later, commands handle it themselves.
        from pravega_admin.errors import report_error

        sys.exit(report_error(error))


def run_with_checked_streams() -> None:
    """Start the server processes of a store, if there are any, and run the command."""
    if starts_store(sys.argv[1:]):
        from pravega_admin.supervisor.child_protocol import CONTROLLER, SEGMENT_STORE
        from pravega_admin.supervisor.early_children import start_early

        start_early([SEGMENT_STORE, CONTROLLER])
    from pravega_admin.output.standard_streams import run_command

    run_command(run_arguments)


def run_arguments() -> None:
    """Run what the arguments say."""
    if starts_store(sys.argv[1:]):
        from pravega_admin.serving.quick_options import read_options

        options = read_options(sys.argv[2:])
        if options is not None:
            sys.exit(start_quickly(options))
    from pravega_admin.verbs import app

    app(prog_name="segstore")


def start_quickly(options: Mapping[str, object]) -> int:
    """Run a store without the parser of verbs; its exit code."""
    from pravega_admin.errors import report_error
    from pravega_admin.serving.store_settings import start_standalone

    try:
        start_standalone(options)
    except (Exception, KeyboardInterrupt) as error:
        return report_error(error)
    return 0


def starts_store(arguments: Sequence[str]) -> bool:
    """Return whether the command line starts server processes, if it is correct."""
    return list(arguments[:1]) == ["standalone"] and HELP_OPTIONS.isdisjoint(arguments)
