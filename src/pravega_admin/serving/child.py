"""A server process of a standalone store: ``python -m pravega_admin child KIND SETTINGS``.

``SETTINGS`` is JSON, or ``@`` and the number of the socket that delivers it.

Owns: the order of a child's first steps. Only the supervisor uses this command, which may change at
any time; people use ``segstore server`` and ``segstore controller``.

The child ties itself to the supervisor before any slow import. When a start fails, the reason goes
to the supervisor as one sentence (``serve.run_server``), and not to the terminal.

Invariants:
1. A server process never imports the modules in ``NEVER_USED`` completely. Held by
   ``test_server_processes_do_not_import_what_they_never_use``.
"""

from __future__ import annotations

import gc
import json
import sys
from collections.abc import Sequence

from pravega_admin.errors import EXIT_FAILED, EXIT_OK, exit_code_of
from pravega_admin.lazy_imports import import_lazily
from pravega_admin.supervisor.child_protocol import Verdict, announce, die_with_supervisor
from pravega_admin.supervisor.early_children import receive_settings
from segstore_client.errors import PravegaError

NEVER_USED = ("asyncio", "grpc.aio", "hmac", "ssl")
"""Modules that trio, gRPC and the log library import for features that a server without TLS never
uses."""

COLLECTION_THRESHOLDS = (20_000, 20, 20)
"""Number of new live objects at which the garbage collector runs (700 is usual), and the number of
collections of a generation before one of the next."""


def collect_seldom() -> None:
    """Make the cyclic garbage collector run less often, and ignore the objects that exist now.

    A server has few reference cycles and many requests, and each full collection is a pause.
    """
    gc.freeze()
    gc.set_threshold(*COLLECTION_THRESHOLDS)
    gc.enable()


def main(arguments: Sequence[str]) -> int:
    """Run a server process until it is told to end; return its exit code."""
    die_with_supervisor()
    # Imported modules are never freed, so the collector need not visit them.
    gc.disable()
    kind, text = arguments
    # The log library imports rich if it can, which takes longer than the rest of it; a server
    # process draws nothing.
    sys.modules["rich"] = None  # type: ignore[assignment]
    import_lazily(NEVER_USED)
    import structlog

    from pravega_admin.output.log_options import LogFormat, LogLevel
    from pravega_admin.output.logs import configure_logs
    from pravega_admin.serving.serve import SERVERS, run_server

    if text.startswith("@"):
        SERVERS[kind].load()
        collect_seldom()
        received = receive_settings(int(text[1:]))
        if received is None:
            return EXIT_FAILED
        text = received
    settings = json.loads(text)
    configure_logs(
        settings["name"],
        level=LogLevel(settings["log_level"]),
        format=LogFormat(settings["log_format"]),
    )

    def on_ready() -> None:
        announce(Verdict(is_ready=True))
        # Except for the imports: the controller waits, and few of those objects are garbage.
        gc.collect()
        collect_seldom()

    try:
        run_server(SERVERS[kind], settings["config"], on_ready=on_ready)
    except PravegaError as error:
        return exit_code_of(error)
    except Exception:
        structlog.get_logger(__name__).exception("server failed")
        return EXIT_FAILED
    return EXIT_OK
