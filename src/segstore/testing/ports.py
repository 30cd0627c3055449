"""Chooses ports of 127.0.0.1 for servers that tests and benchmarks start.

1. No port is chosen twice while the process that chose it lives, whichever processes choose: it
   is held by a UDP socket, which disturbs no server, since all servers here speak TCP. So a server
   that is killed finds its port free when it starts again.
2. The kernel gives none of these ports to a connection, because they lie outside its own range for
   those: a port that the kernel chose may belong to a client's connection a moment later.
"""

from __future__ import annotations

import contextlib
import random
import socket
from collections.abc import Sequence
from pathlib import Path

HOST = "127.0.0.1"
LOWEST_PORT = 10_000
HIGHEST_PORT = 65_535
KERNEL_RANGE = Path("/proc/sys/net/ipv4/ip_local_port_range")
TRIES_MAX = 10_000


class NoFreePortError(Exception):
    """All ports that were tried are in use."""


def free_ports(count: int) -> list[int]:
    """Return ``count`` different ports on which no process listens. Raises ``NoFreePortError``."""
    return [free_neighbours(1) for _ in range(count)]


def free_neighbours(count: int) -> int:
    """Choose this many ports, one after the other, and return the first. Raises NoFreePortError."""
    for _ in range(TRIES_MAX):
        first = random.choice(_candidates(count))
        if _hold(range(first, first + count)):
            return first
    raise NoFreePortError(f"none of {TRIES_MAX} ports tried is free, with {count - 1} after it")


def _candidates(count: int) -> Sequence[int]:
    """Return the ports that the kernel gives to no connection, and neither the ones after them."""
    kernel_first, kernel_last = map(int, KERNEL_RANGE.read_text().split())
    below = range(LOWEST_PORT, kernel_first - count + 1)
    above = range(max(LOWEST_PORT, kernel_last + 1), HIGHEST_PORT + 2 - count)
    return max(below, above, key=len) or range(LOWEST_PORT, HIGHEST_PORT + 2 - count)


def _hold(ports: Sequence[int]) -> bool:
    """Hold all these ports until this process ends, or none. Return whether they are held."""
    with contextlib.ExitStack() as stack:
        holders = [
            stack.enter_context(socket.socket(socket.AF_INET, socket.SOCK_DGRAM)) for _ in ports
        ]
        probes = [stack.enter_context(socket.socket()) for _ in ports]
        try:
            for port, holder, probe in zip(ports, holders, probes, strict=True):
                holder.bind((HOST, port))
                probe.bind((HOST, port))
        except OSError:
            return False
        for holder in holders:
            holder.detach()  # stays open until the process ends
    return True
