"""Notifies a service manager, such as systemd, that a service is ready.

Owns: ``notify_ready``. The manager names a datagram socket in ``NOTIFY_SOCKET``, and waits for
``READY=1`` from the process that it has started.

Without ``NOTIFY_SOCKET`` nothing is imported, as most servers have no service manager.

Invariants:
1. When the socket does not exist or nobody reads it, the call returns and no error is raised. Held
   by ``test_where_nobody_listens_nothing_happens``.
"""

from __future__ import annotations

import os

VARIABLE = "NOTIFY_SOCKET"


def notify_ready() -> None:
    """Notify the service manager, if there is one, that the service is ready."""
    path = os.environ.get(VARIABLE, "")
    if not path:
        return
    import socket
    from contextlib import suppress

    # A name in Linux's abstract namespace is written with an @ in front.
    address = f"\0{path[1:]}" if path.startswith("@") else path
    with suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
        sender.settimeout(1.0)
        sender.sendto(b"READY=1", address)
