"""Faults of a running cluster: each harms the cluster and heals it again.

Owns: ``FAULTS``, and ``open_cluster``: three segment stores, two controllers, three bookies and a
ZooKeeper, as ``make cluster`` runs them, with proxies in between.

Segment stores are published, and controllers are given to clients, at an address where proxies
listen, one for each; and each process dials ZooKeeper through a proxy of its own. So it can be cut
off from clients, or from ZooKeeper, alone. Bookies and stores meet without one, as a bookie listens
where it is published: these are killed and stopped.
"""

from __future__ import annotations

import os
import random
import signal
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from compat_harness.capture import Capture, Seen
from compat_harness.cluster import BOOKIES, CONTROLLERS, STORES, Cluster
from compat_harness.secure import SecureCluster
from compat_harness.server import HOST
from compat_harness.wall_clock import MISSING, WallClock, find_library
from foreign_servers.deadlines import scale

from vortex.proxy import Network, Proxy
from vortex.subject import FaultTable, Subject, paused

ZOOKEEPER = "zookeeper"
CLIENTS_HOST = "127.0.0.2"
FIRST_LINK = 3
"""The last number of the first address at which ZooKeeper is dialled."""
STORE_NAMES = tuple(f"segment-store-{number}" for number in range(STORES))
CONTROLLER_NAMES = tuple(f"controller-{number}" for number in range(CONTROLLERS))
BOOKIE_NAMES = tuple(f"bookie-{number}" for number in range(BOOKIES))
BACK_SECONDS_MAX = scale(90.0)
SHORT_SECONDS = (0.2, 5.0)
LONG_SECONDS = (14.0, 25.0)
"""Longer than a session with ZooKeeper and the time until others have what it had."""
VERY_LONG_SECONDS = (14.0, 60.0)
RECOVERY_SECONDS = (0.02, 2.0)
POLL_SECONDS = 0.02
SECURE_JUMP_SECONDS_MAX = 3000.0


@dataclass(frozen=True, slots=True)
class Site:
    """All parts that can be harmed: ``served`` has the proxy in front of each store and
    controller, ``links`` the one between each process and ZooKeeper."""

    cluster: Cluster
    served: dict[str, Proxy]
    links: dict[str, Proxy]
    clock: WallClock
    rng: random.Random

    def pid_of(self, name: str) -> int:
        """Return the process that plays a part, as soon as there is one."""
        deadline = time.monotonic() + BACK_SECONDS_MAX
        while (pid := self.cluster.pid_of(name)) is None:
            self._wait(deadline, name)
        return pid

    def signal(self, name: str, number: int) -> int:
        """Send a signal to the process that plays a part; returns its id."""
        while True:
            pid = self.pid_of(name)
            try:
                os.kill(pid, number)
            except ProcessLookupError:
                # It has just ended by itself, or from the fault before.
                time.sleep(POLL_SECONDS)
            else:
                return pid

    def kill(self, *names: str) -> None:
        """Kill processes at once, and wait until others play their parts."""
        killed = {name: self.signal(name, signal.SIGKILL) for name in names}
        for name, pid in killed.items():
            self.wait_replaced(name, pid)

    def wait_replaced(self, name: str, pid: int) -> None:
        """Wait until another process plays a part."""
        deadline = time.monotonic() + BACK_SECONDS_MAX
        while self.pid_of(name) == pid:
            self._wait(deadline, name)

    def sleep(self, seconds: tuple[float, float]) -> None:
        """Sleep for a time between two."""
        time.sleep(self.rng.uniform(*seconds))

    def _wait(self, deadline: float, name: str) -> None:
        if time.monotonic() > deadline:
            raise TimeoutError(f"nobody plays {name}:\n{self.cluster.tell()}")
        time.sleep(POLL_SECONDS)


FAULTS: FaultTable[Site] = FaultTable()
_fault = FAULTS.enter


@contextmanager
def open_cluster(directory: Path, rng: random.Random, *, secure: bool = False) -> Iterator[Subject]:
    """Run a cluster, with everything that it keeps in the directory; a ``secure`` one has clients
    that are a user, and TLS between all."""
    # A controller on the loopback interface sends clients to the host by which they dialled it.
    served = dict.fromkeys((*STORE_NAMES, *CONTROLLER_NAMES), CLIENTS_HOST)
    links = {
        name: f"127.0.0.{number}"
        for number, name in enumerate((*served, *BOOKIE_NAMES), FIRST_LINK)
    }
    detours = {name: served[name] for name in STORE_NAMES}
    detours.update({f"{name}/{ZOOKEEPER}": host for name, host in links.items()})
    # At a time that is further away the certificates are not valid, and nothing should go on.
    clock = WallClock(directory, jump_seconds_max=SECURE_JUMP_SECONDS_MAX if secure else None)
    options = [f"--detour={name}={host}" for name, host in detours.items()]
    kind = SecureCluster if secure else Cluster
    cluster = kind(directory, options, environment=clock.environment)
    with ExitStack() as stack:

        def relay(name: str, host: str) -> Proxy:
            return stack.enter_context(Proxy(host, HOST, [cluster.port_of(name)]))

        site = Site(
            cluster,
            {name: relay(name, host) for name, host in served.items()},
            {name: relay(ZOOKEEPER, host) for name, host in links.items()},
            clock,
            rng,
        )
        seen = stack.enter_context(_capture(cluster)) if secure else None
        stack.enter_context(cluster)
        scheme = "tls" if secure else "tcp"
        yield Subject(
            controllers=[
                f"{scheme}://{served[name]}:{cluster.port_of(name)}" for name in CONTROLLER_NAMES
            ],
            variables=cluster.own_environment() if isinstance(cluster, SecureCluster) else {},
            faults=FAULTS.around(site),
            store_pids=lambda: [site.pid_of(name) for name in STORE_NAMES],
            left_out={} if find_library() else dict.fromkeys(NEEDS_WALL_CLOCK, MISSING),
            report=None if seen is None else partial(_tell_encrypted, seen),
        )


def _capture(cluster: Cluster) -> Capture:
    """Return a capture of what crosses all ports of a cluster. Raises ``PermissionError``."""
    names = (ZOOKEEPER, *BOOKIE_NAMES, *STORE_NAMES, *CONTROLLER_NAMES)
    bookies = [cluster.port_of(name) for name in BOOKIE_NAMES]
    return Capture([cluster.port_of(name) for name in names], asking_ports=bookies)


def _tell_encrypted(seen: Seen) -> tuple[str, bool]:
    """Return a sentence about captured connections, and whether all begin with a handshake."""
    count = seen.encrypted.total()
    if seen.clear:
        port, first = seen.clear[0]
        return f"{len(seen.clear)} connections in the clear, one to port {port}: {first!r}", False
    return f"{count} connections seen at {len(seen.encrypted)} ports, all with TLS", count > 0


# ---- Processes -----------------------------------------------------------------------------------


@_fault("kill a segment store", weight=4)
def kill_store(site: Site) -> None:
    site.kill(site.rng.choice(STORE_NAMES))


@_fault("kill a controller", weight=2)
def kill_controller(site: Site) -> None:
    site.kill(site.rng.choice(CONTROLLER_NAMES))


@_fault("kill a bookie", weight=3)
def kill_bookie(site: Site) -> None:
    site.kill(site.rng.choice(BOOKIE_NAMES))


@_fault("kill ZooKeeper", weight=2)
def kill_zookeeper(site: Site) -> None:
    site.kill(ZOOKEEPER)


@_fault("kill a segment store and a bookie", weight=2)
def kill_store_and_bookie(site: Site) -> None:
    site.kill(site.rng.choice(STORE_NAMES), site.rng.choice(BOOKIE_NAMES))


@_fault("kill a segment store and both controllers", weight=1)
def kill_store_and_controllers(site: Site) -> None:
    site.kill(site.rng.choice(STORE_NAMES), *CONTROLLER_NAMES)


@_fault("kill all segment stores", weight=1)
def kill_all_stores(site: Site) -> None:
    site.kill(*STORE_NAMES)


@_fault("kill two bookies", weight=1)
def kill_two_bookies(site: Site) -> None:
    site.kill(*site.rng.sample(BOOKIE_NAMES, 2))


@_fault("kill a segment store again while it recovers", weight=3)
def kill_recovering_store(site: Site) -> None:
    name = site.rng.choice(STORE_NAMES)
    for _ in range(site.rng.randint(2, 4)):
        site.kill(name)
        site.sleep(RECOVERY_SECONDS)


@_fault("kill everything", weight=1)
def kill_everything(site: Site) -> None:
    site.cluster.kill_all()
    site.cluster.start()


@_fault("stop and start everything the gentle way", weight=1)
def restart(site: Site) -> None:
    site.cluster.stop()
    site.cluster.start()


@_fault("end a segment store the gentle way", weight=3)
def end_store(site: Site) -> None:
    name = site.rng.choice(STORE_NAMES)
    site.wait_replaced(name, site.signal(name, signal.SIGTERM))


@_fault("pause a segment store", weight=2)
def pause_store(site: Site) -> None:
    _pause(site, STORE_NAMES, SHORT_SECONDS)


@_fault("pause a segment store until others have its containers", weight=3)
def pause_store_for_long(site: Site) -> None:
    _pause(site, STORE_NAMES, LONG_SECONDS)


@_fault("pause a controller", weight=1)
def pause_controller(site: Site) -> None:
    _pause(site, CONTROLLER_NAMES, SHORT_SECONDS)


@_fault("pause a controller beyond its session", weight=1)
def pause_controller_for_long(site: Site) -> None:
    _pause(site, CONTROLLER_NAMES, LONG_SECONDS)


@_fault("pause a bookie", weight=2)
def pause_bookie(site: Site) -> None:
    _pause(site, BOOKIE_NAMES, LONG_SECONDS)


@_fault("pause ZooKeeper", weight=1)
def pause_zookeeper(site: Site) -> None:
    _pause(site, (ZOOKEEPER,), VERY_LONG_SECONDS)


@_fault("kill a segment store while a bookie is paused", weight=2)
def kill_store_beside_paused_bookie(site: Site) -> None:
    with paused(site.pid_of(site.rng.choice(BOOKIE_NAMES))):
        site.kill(site.rng.choice(STORE_NAMES))
        site.sleep(SHORT_SECONDS)


@_fault("kill a segment store after it was paused for long", weight=1)
def kill_paused_store(site: Site) -> None:
    name = site.rng.choice(STORE_NAMES)
    with paused(site.pid_of(name)):
        site.sleep(LONG_SECONDS)
        site.kill(name)


def _pause(site: Site, names: Sequence[str], seconds: tuple[float, float]) -> None:
    with paused(site.pid_of(site.rng.choice(names))):
        site.sleep(seconds)


# ---- Wall clock ----------------------------------------------------------------------------------


@_fault("set the wall clock of stores and controllers", weight=2)
def set_wall_clock(site: Site) -> None:
    with site.clock.jumped(site.rng):
        site.sleep(SHORT_SECONDS)


@_fault("kill a segment store and both controllers while the wall clock is wrong", weight=1)
def kill_with_wrong_clock(site: Site) -> None:
    with site.clock.jumped(site.rng):
        site.kill(site.rng.choice(STORE_NAMES), *CONTROLLER_NAMES)
        site.sleep(SHORT_SECONDS)


NEEDS_WALL_CLOCK = frozenset(
    {
        "set the wall clock of stores and controllers",
        "kill a segment store and both controllers while the wall clock is wrong",
    }
)


# ---- Network -------------------------------------------------------------------------------------


@_fault("cut a segment store off from ZooKeeper", weight=3)
def cut_store_from_zookeeper(site: Site) -> None:
    _cut(site, [site.links[site.rng.choice(STORE_NAMES)]], Network.CUT, LONG_SECONDS)


@_fault("silence a segment store's link to ZooKeeper", weight=2)
def silence_store_to_zookeeper(site: Site) -> None:
    _cut(site, [site.links[site.rng.choice(STORE_NAMES)]], Network.SILENT, LONG_SECONDS)


@_fault("cut a controller off from ZooKeeper", weight=1)
def cut_controller_from_zookeeper(site: Site) -> None:
    _cut(site, [site.links[site.rng.choice(CONTROLLER_NAMES)]], Network.CUT, LONG_SECONDS)


@_fault("cut a bookie off from ZooKeeper", weight=1)
def cut_bookie_from_zookeeper(site: Site) -> None:
    _cut(site, [site.links[site.rng.choice(BOOKIE_NAMES)]], Network.CUT, LONG_SECONDS)


@_fault("cut everybody off from ZooKeeper for a moment", weight=1)
def cut_all_from_zookeeper(site: Site) -> None:
    _cut(site, list(site.links.values()), Network.CUT, SHORT_SECONDS)


@_fault("cut a segment store off from clients and controllers", weight=2)
def cut_store_from_clients(site: Site) -> None:
    _cut(site, [site.served[site.rng.choice(STORE_NAMES)]], Network.CUT, SHORT_SECONDS)


@_fault("silence a segment store", weight=1)
def silence_store(site: Site) -> None:
    _cut(site, [site.served[site.rng.choice(STORE_NAMES)]], Network.SILENT, SHORT_SECONDS)


@_fault("cut clients off from all", weight=1)
def cut_clients(site: Site) -> None:
    _cut(site, list(site.served.values()), Network.CUT, SHORT_SECONDS)


@_fault("cut a segment store off from all but bookies", weight=2)
def cut_store_from_all(site: Site) -> None:
    name = site.rng.choice(STORE_NAMES)
    _cut(site, [site.served[name], site.links[name]], Network.CUT, LONG_SECONDS)


@_fault("reset all connections", weight=2)
def reset_connections(site: Site) -> None:
    for proxy in (*site.served.values(), *site.links.values()):
        proxy.reset_connections()


def _cut(
    site: Site, proxies: Sequence[Proxy], network: Network, seconds: tuple[float, float]
) -> None:
    with ExitStack() as stack:
        for proxy in proxies:
            stack.enter_context(proxy.behaving(network))
        site.sleep(seconds)
