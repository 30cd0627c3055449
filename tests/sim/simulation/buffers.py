"""Checks the bytes in a server's buffers for its connections, counted from outside.

Owns: ``check_buffers``.
"""

from __future__ import annotations

from pravega_wire.commands import COMMAND_BYTES_MAX
from segstore.network.admission.buffer_bytes import (
    COMMAND_BYTES_FREE,
    READ_BYTES_SHORT,
    REPLY_BYTES_FREE,
)
from segstore.network.server import ConnectionServer
from simulation.plan import KIB

OWN_BYTES_MAX = COMMAND_BYTES_FREE + REPLY_BYTES_FREE + 4 * READ_BYTES_SHORT + 64 * KIB
"""Bytes that a connection may have besides: those that it may always have, and those that it has
received or made in one step."""


def check_buffers(server: ConnectionServer) -> str:
    """Return what is wrong with a server's buffers; empty when nothing is."""
    commands = replies = 0
    for connection in server.connections:
        commands += connection.protocol.pending_bytes
        replies += connection.replies.size
    count = len(server.connections)
    own = count * OWN_BYTES_MAX
    part = server._settings.buffer_bytes_total_max // 4
    # One command may go beyond what all may have, and one reply about a table.
    bounds = {
        "incomplete commands": (commands, max(part, COMMAND_BYTES_MAX) + COMMAND_BYTES_MAX + own),
        "commands that are not reserved": (commands, server.admission.buffers.commands.count + own),
        "unsent replies": (replies, 2 * part + COMMAND_BYTES_MAX + own),
        "unsent replies that are not counted": (replies, server.admission.buffers.replies.count),
    }
    for what, (found, bound) in bounds.items():
        if found > bound:
            return f"{count} connections have {found} bytes of {what}: the bound is {bound}"
    return ""
