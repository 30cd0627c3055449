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
from compat_harness.wall_clock import MISSING, WallClock, find_library
from foreign_servers.deadlines import scale

from pravega_wire.commands import HELLO
from pravega_wire.connection import Connection, Role
from segstore_client.blocking.event_writer import BlockingEventWriter
from segstore_client.controller.controller_client import ControllerClient
from segstore_client.controller.stream_settings import StreamSettings
from segstore_client.cuts.segment_info import tail_offsets
from vortex.disk import Disk, mounted
from vortex.proxy import Network, Proxy
from vortex.subject import FaultTable, Subject, paused

CLIENTS_HOST = "127.0.0.2"
PAUSE_SECONDS = (0.3, 8.0)
CUT_SECONDS = (0.1, 6.0)
SLOW_SECONDS = (1.0, 5.0)
FULL_SECONDS = (1.0, 6.0)
BALLAST = "ballast"
BALLAST_BYTES = 48 * 1024 * 1024
"""Bytes of each stream that the fault of a full disk gets rid of."""
FREEING_SECONDS_MAX = scale(120.0)
RECOVERY_SECONDS = (0.02, 0.6)
"""Time, in seconds, from a kill to the second kill."""
JUMPED_SECONDS = (1.5, 8.0)
"""Time, in seconds, for which the wall clock is wrong; processes notice after a second."""
DRAINED_SECONDS_MAX = 4.0
"""Maximum length, in seconds, of a stop during which everything has come to tier 2."""
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
    clock: WallClock
    rng: random.Random


FAULTS: FaultTable[Site] = FaultTable()
_fault = FAULTS.enter


@contextmanager
def open_store(directory: Path, rng: random.Random) -> Iterator[Subject]:
    """Run a store on a small disk, behind a proxy. Its log is in the directory at the end."""
    with contextlib.ExitStack() as stack:
        disk = stack.enter_context(mounted(directory / "disk"))
        clock = WallClock(directory)
        server = Server(disk.path, environment=clock.environment)

        def keep_log() -> None:
            """Take the server's log from its disk, which goes with the run."""
            if server.log_path.exists():
                shutil.copy(server.log_path, directory / "server.log")

        stack.callback(keep_log)
        stack.enter_context(server)
        ports = (server.controller_port, server.segment_store_port)
        proxy = stack.enter_context(Proxy(CLIENTS_HOST, HOST, ports))
        left_out = {} if disk.can_fill else dict.fromkeys(NEEDS_SMALL_DISK, "mounting needs root")
        if find_library() is None:
            left_out.update(dict.fromkeys(NEEDS_WALL_CLOCK, MISSING))
        yield Subject(
            controllers=[f"tcp://{CLIENTS_HOST}:{server.controller_port}"],
            faults=FAULTS.around(Site(server, proxy, disk, clock, rng)),
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


@_fault("kill everything, and recover what is not damaged", weight=1)
def recover_sound_store(site: Site) -> None:
    site.server.kill_all()
    before = _content_of(site.server.data_dir)
    said = site.server.recover()
    if "nothing has to be recovered" not in said or _content_of(site.server.data_dir) != before:
        raise AssertionError(f"recover changed a store that is not damaged: {said}")
    site.server.start()


@_fault("lose the journal after a stop, and recover", weight=1)
def lose_journal(site: Site) -> None:
    """Remove the journal after a stop that has brought everything to tier 2: nothing is lost."""
    began = time.monotonic()
    site.server.stop()
    if time.monotonic() - began < DRAINED_SECONDS_MAX:
        shutil.rmtree(site.server.data_dir / "journal-0")
        said = site.server.recover()
        if "has lost" in said or "the controller's records and the store agree" not in said:
            raise AssertionError(f"recover has not found what tier 2 has: {said}")
    site.server.start()


def _content_of(directory: Path) -> dict[Path, bytes]:
    """Return all files that a stopped store keeps, without those that name its processes."""
    return {
        path: path.read_bytes()
        for path in directory.rglob("*")
        if path.is_file() and path.suffix != ".lock" and "run" not in path.parts
    }


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


@_fault("free a full disk by truncating, sealing and deleting", weight=2)
def free_full_disk(site: Site) -> None:
    """Do what an operator does: get rid of streams that are not needed any more.

    The disk stays full meanwhile but for what that frees, and a writer goes on in it.
    """
    first, second = (f"ballast-{site.rng.getrandbits(64):016x}" for _ in range(2))
    address = f"tcp://{HOST}:{site.server.controller_port}"
    with ControllerClient(address, patience=FREEING_SECONDS_MAX) as client:
        client.ensure_scope(BALLAST)
        for stream in (first, second):
            client.create_stream(BALLAST, stream, StreamSettings())
            _write_ballast(client, stream, site.rng.randbytes(1024), BALLAST_BYTES // 1024)
            _wait_for_chunks(site, stream, least=BALLAST_BYTES * 3 // 4)
        with site.disk.full() as fill:
            client.truncate_stream(BALLAST, first, tail_offsets(client, BALLAST, first))
            _wait_for_chunks(site, first, most=BALLAST_BYTES // 4)
            _write_ballast(client, first, b"goes on", 100)
            fill()
            client.seal_stream(BALLAST, second)
            client.delete_stream(BALLAST, second)
            _wait_for_chunks(site, second, most=0)
            _write_ballast(client, first, b"goes on", 100)
        client.seal_stream(BALLAST, first)
        client.delete_stream(BALLAST, first)


def _write_ballast(client: ControllerClient, stream: str, event: bytes, count: int) -> None:
    with BlockingEventWriter(client, BALLAST, stream, patience=FREEING_SECONDS_MAX) as writer:
        for _ in range(count):
            writer.submit(event)


def _wait_for_chunks(site: Site, stream: str, *, least: int = 0, most: int = 2**63) -> None:
    """Wait until tier 2 has so many bytes of a stream."""
    directory = site.server.data_dir / "storage" / BALLAST / stream
    deadline = time.monotonic() + FREEING_SECONDS_MAX
    while True:
        count = 0
        with contextlib.suppress(FileNotFoundError):  # deleted in this moment
            count = sum(path.stat().st_size for path in directory.rglob("*") if path.is_file())
            if least <= count <= most:
                return
        if time.monotonic() > deadline:
            raise TimeoutError(f"tier 2 has {count} bytes of {stream}, not {least} to {most}")
        time.sleep(0.05)


NEEDS_SMALL_DISK = frozenset(
    {
        "fill the disk",
        "kill the segment store on a full disk",
        "free a full disk by truncating, sealing and deleting",
    }
)


# ---- Wall clock ----------------------------------------------------------------------------------


@_fault("set the wall clock", weight=2)
def set_wall_clock(site: Site) -> None:
    with site.clock.jumped(site.rng):
        time.sleep(site.rng.uniform(*JUMPED_SECONDS))


@_fault("kill both servers while the wall clock is wrong", weight=2)
def kill_with_wrong_clock(site: Site) -> None:
    with site.clock.jumped(site.rng):
        site.server.wait_until_back(site.server.kill(SEGMENT_STORE, CONTROLLER))
        time.sleep(site.rng.uniform(*JUMPED_SECONDS))


NEEDS_WALL_CLOCK = frozenset(
    {"set the wall clock", "kill both servers while the wall clock is wrong"}
)


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
