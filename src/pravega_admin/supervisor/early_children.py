"""Server processes that are started before their settings are known: they import meanwhile.

Owns: the children that were started early, and the delivery of their settings.

A child gets, over a socket, its settings as JSON up to the end of the stream, and with the first
bytes the descriptor of the log file, if there is one. Its pid file is written before it gets them.

This module has few imports, because children are started only after them.

Invariants:
1. A child that gets no settings ends without a message: when its socket is closed, or when the
   command line has ended. Held by ``test_a_child_that_gets_no_settings_ends_without_a_word``.
"""

from __future__ import annotations

import os
import socket
import sys
from collections.abc import Sequence

from pravega_admin.supervisor.child_process import (
    ChildProcess,
    ChildSpec,
    spawn,
    start_process,
    write_pid_or_abandon,
)
from pravega_admin.supervisor.run_directory import RunDirectory

RECEIVED_BYTES = 64 * 1024

_early: dict[str, tuple[ChildProcess, socket.socket]] = {}
"""The processes that wait for settings, by their kind."""


def child_command(kind: str, settings: str) -> tuple[str, ...]:
    """Return the command that starts a child. ``settings`` are JSON, or ``@`` and the number of the
    socket that delivers them."""
    return (sys.executable, "-m", "pravega_admin", "child", kind, settings)


def start_early(kinds: Sequence[str]) -> None:
    """Start children of these kinds, which wait for their settings."""
    for kind in kinds:
        ours, theirs = socket.socketpair()
        with theirs:
            command = child_command(kind, f"@{theirs.fileno()}")
            _early[kind] = start_process(command, inherited=[theirs.fileno()]), ours


def start_child(
    kind: str, spec: ChildSpec, directory: RunDirectory, *, log_file: int | None
) -> ChildProcess:
    """Start a child, or send ``spec`` to the one that was started early."""
    if kind not in _early:
        return spawn(spec, directory, log_file=log_file)
    process, channel = _early.pop(kind)
    descriptors = [] if log_file is None else [log_file]
    settings = spec.command[-1].encode()
    with channel:
        write_pid_or_abandon(process, spec, directory)
        try:
            sent = socket.send_fds(channel, [settings], descriptors)
            channel.sendall(settings[sent:])
        except OSError:  # it has ended already
            process.abandon()
            return spawn(spec, directory, log_file=log_file)
    return process


def receive_settings(descriptor: int) -> str | None:
    """Wait, in a child, for its settings; None when there will be none."""
    with socket.socket(fileno=descriptor) as channel:
        data, descriptors, _, _ = socket.recv_fds(channel, RECEIVED_BYTES, 1)
        more = data
        while more:
            more = channel.recv(RECEIVED_BYTES)
            data += more
    if not data:
        return None
    for log_file in descriptors:
        os.dup2(log_file, 1)
        os.dup2(log_file, 2)
    return data.decode()
