"""Faults of a running store and of what it depends on: each does harm and heals it again.

Owns: ``FAULTS``, the table of faults with how often each is drawn, and ``open_store``.

A fault gets the ``Site``, harms it, and returns once everything is in working order again as far as
the fault is concerned; whether the store then goes on is for the caller to judge.
"""

from __future__ import annotations

import contextlib
import os
import random
import shutil
import signal
import socket
import struct
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from compat_harness.server import CONTROLLER, HOST, SEGMENT_STORE, Server

from pravega_wire.commands import HELLO
from pravega_wire.connection import Connection, Role
from vortex.disk import Disk, mounted
from vortex.proxy import Network, Proxy
from vortex.subject import FaultTable, Subject, paused

CLIENTS_HOST = "127.0.0.2"
PAUSE_SECONDS = (0.3, 8.0)
CUT_SECONDS = (0.1, 6.0)
SLOW_SECONDS = (1.0, 5.0)
FULL_SECONDS = (1.0, 6.0)
RECOVERY_SECONDS = (0.02, 0.6)
"""Time, in seconds, from a kill to the second kill."""
GARBAGE_BYTES = (1, 200_000)
ATTACK_SECONDS = 3.0
HALF_FRAME_CONNECTIONS = 60
IDLE_CONNECTIONS = 300
APPEND_BLOCK_END_TYPE = 4
LONG_FRAME_BYTES = 8 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class Site:
    """All parts that can be harmed."""

    server: Server
    proxy: Proxy
    disk: Disk
    rng: random.Random


FAULTS: FaultTable[Site] = FaultTable()
_fault = FAULTS.enter


@contextmanager
def open_store(directory: Path, rng: random.Random) -> Iterator[Subject]:
    """Run a store on a small disk, behind a proxy. Its log is in the directory at the end."""
    with contextlib.ExitStack() as stack:
        disk = stack.enter_context(mounted(directory / "disk"))
        server = Server(disk.path)

        def keep_log() -> None:
            """Take the server's log from its disk, which goes with the run."""
            if server.log_path.exists():
                shutil.copy(server.log_path, directory / "server.log")

        stack.callback(keep_log)
        stack.enter_context(server)
        ports = (server.controller_port, server.segment_store_port)
        proxy = stack.enter_context(Proxy(CLIENTS_HOST, HOST, ports))
        left_out = {} if disk.can_fill else dict.fromkeys(NEEDS_SMALL_DISK, "mounting needs root")
        yield Subject(
            controllers=[f"tcp://{CLIENTS_HOST}:{server.controller_port}"],
            faults=FAULTS.around(Site(server, proxy, disk, rng)),
            left_out=left_out,
            store_pids=lambda: [server.pid(SEGMENT_STORE)],
        )


# ---- Processes -----------------------------------------------------------------------------------


@_fault("kill the segment store", weight=4)
def kill_segment_store(site: Site) -> None:
    site.server.wait_until_back(site.server.kill(SEGMENT_STORE))


@_fault("kill the controller", weight=3)
def kill_controller(site: Site) -> None:
    site.server.wait_until_back(site.server.kill(CONTROLLER))


@_fault("kill both servers", weight=3)
def kill_both(site: Site) -> None:
    site.server.wait_until_back(site.server.kill(SEGMENT_STORE, CONTROLLER))


@_fault("kill everything", weight=3)
def kill_everything(site: Site) -> None:
    site.server.kill_all()
    site.server.start()


@_fault("kill the segment store again while it recovers", weight=4)
def kill_recovering_store(site: Site) -> None:
    killed = site.server.kill(SEGMENT_STORE)
    for _ in range(site.rng.randint(1, 3)):
        killed = _kill_successor(site, killed)
    site.server.wait_until_back(killed)


@_fault("stop and start the gentle way", weight=3)
def restart(site: Site) -> None:
    site.server.restart()


@_fault("pause the segment store", weight=3)
def pause_segment_store(site: Site) -> None:
    with paused(site.server.pid(SEGMENT_STORE)):
        time.sleep(site.rng.uniform(*PAUSE_SECONDS))


@_fault("pause the controller", weight=2)
def pause_controller(site: Site) -> None:
    with paused(site.server.pid(CONTROLLER)):
        time.sleep(site.rng.uniform(*PAUSE_SECONDS))


@_fault("kill the segment store while it is paused", weight=1)
def kill_paused_store(site: Site) -> None:
    with paused(site.server.pid(SEGMENT_STORE)):
        time.sleep(site.rng.uniform(*RECOVERY_SECONDS))
        killed = site.server.kill(SEGMENT_STORE)
    site.server.wait_until_back(killed)


def _kill_successor(site: Site, killed: dict[str, int]) -> dict[str, int]:
    """Kill the process that the supervisor has just started in place of the killed one."""
    deadline = time.monotonic() + 30.0
    while True:
        with contextlib.suppress(OSError, ValueError):
            pid = site.server.pid(SEGMENT_STORE)
            if pid != killed[SEGMENT_STORE]:
                break
        if time.monotonic() > deadline:
            raise TimeoutError("the supervisor starts no new segment store")
        time.sleep(0.005)
    time.sleep(site.rng.uniform(*RECOVERY_SECONDS))
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)
    return {SEGMENT_STORE: pid}


# ---- Network -------------------------------------------------------------------------------------


@_fault("reset all connections", weight=3)
def reset_connections(site: Site) -> None:
    site.proxy.reset_connections()


@_fault("cut the network", weight=3)
def cut_network(site: Site) -> None:
    with site.proxy.behaving(Network.CUT):
        time.sleep(site.rng.uniform(*CUT_SECONDS))


@_fault("silence the network", weight=2)
def silence_network(site: Site) -> None:
    with site.proxy.behaving(Network.SILENT):
        time.sleep(site.rng.uniform(*CUT_SECONDS))


@_fault("slow the network down", weight=1)
def slow_network(site: Site) -> None:
    with site.proxy.behaving(Network.SLOW):
        time.sleep(site.rng.uniform(*SLOW_SECONDS))


@_fault("kill the segment store behind a cut network", weight=2)
def kill_behind_cut(site: Site) -> None:
    with site.proxy.behaving(Network.CUT):
        site.server.wait_until_back(site.server.kill(SEGMENT_STORE))


# ---- Disk ----------------------------------------------------------------------------------------


@_fault("fill the disk", weight=3)
def fill_disk(site: Site) -> None:
    with site.disk.full():
        time.sleep(site.rng.uniform(*FULL_SECONDS))


@_fault("kill the segment store on a full disk", weight=2)
def kill_on_full_disk(site: Site) -> None:
    with site.disk.full():
        time.sleep(site.rng.uniform(*RECOVERY_SECONDS))
        killed = site.server.kill(SEGMENT_STORE)
        time.sleep(site.rng.uniform(*FULL_SECONDS))
    site.server.wait_until_back(killed)


NEEDS_SMALL_DISK = frozenset({"fill the disk", "kill the segment store on a full disk"})


# ---- Strangers on the ports ----------------------------------------------------------------------


@_fault("send garbage to both ports", weight=1)
def send_garbage(site: Site) -> None:
    for port in (site.server.controller_port, site.server.segment_store_port):
        for _ in range(20):
            with contextlib.suppress(OSError), _connected(port) as stranger:
                stranger.sendall(site.rng.randbytes(site.rng.randint(*GARBAGE_BYTES)))


@_fault("send half frames on many connections", weight=1)
def send_half_frames(site: Site) -> None:
    hello = bytes(Connection(Role.CLIENT).send(HELLO))
    header = struct.pack(">ii", APPEND_BLOCK_END_TYPE, LONG_FRAME_BYTES)
    with contextlib.ExitStack() as stack:
        for _ in range(HALF_FRAME_CONNECTIONS):
            with contextlib.suppress(OSError):
                stranger = stack.enter_context(_connected(site.server.segment_store_port))
                stranger.sendall(hello + header + bytes(LONG_FRAME_BYTES // 2))
        time.sleep(ATTACK_SECONDS)


@_fault("hold many idle connections", weight=1)
def hold_idle_connections(site: Site) -> None:
    with contextlib.ExitStack() as stack:
        for number in range(IDLE_CONNECTIONS):
            ports = (site.server.segment_store_port, site.server.controller_port)
            with contextlib.suppress(OSError):
                stack.enter_context(_connected(ports[number % 8 == 0]))
        time.sleep(ATTACK_SECONDS)


def _connected(port: int) -> socket.socket:
    return socket.create_connection((HOST, port), timeout=2.0)
