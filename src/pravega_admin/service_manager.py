"""Notifies a service manager, such as systemd, that a service is ready.

Owns: ``notify_ready``. The manager names a datagram socket in ``NOTIFY_SOCKET``, and waits for
``READY=1`` from the process that it has started.

Invariants:
1. Without such a socket nothing is imported or done, as most servers have no service manager.
2. A manager that accepts no message disturbs no service.
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
