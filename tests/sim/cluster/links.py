"""Links between the processes of a cluster: late messages, broken connections, cut links.

Owns: ``Weather`` (how bad it is), ``Link`` and ``Wires`` (connections between all hosts).

Invariants:
1. A link that is cut delivers nothing until it is whole again; then what was sent arrives, unless
   its connection was given up meanwhile. Nobody is told of a cut.
2. The rest is that of ``simulation.network``: a prefix of what was sent arrives, in order.
"""

from __future__ import annotations

import errno
from collections import Counter
from collections.abc import Callable
from random import Random

import trio
from simulation.network import Network, NetworkStream

CALM_SECONDS_MEAN = 0.001


class Weather:
    """The strength of all faults, until it is calm."""

    def __init__(self, random: Random) -> None:
        self.random = random
        self.is_calm = False
        self.delay_seconds_mean = random.choice([0.0005, 0.002, 0.002, 0.02])
        self.late_rate = random.choice([0.0, 0.01, 0.05])
        self.late_seconds_max = random.choice([0.5, 3.0])
        self.reset_bytes_mean = random.choice([0, 0, 20_000, 100_000])

    def delay(self) -> float:
        """Return how long a message takes."""
        if self.is_calm:
            return self.random.expovariate(1 / CALM_SECONDS_MEAN)
        if self.random.random() < self.late_rate:
            return self.random.random() * self.late_seconds_max
        return self.random.expovariate(1 / self.delay_seconds_mean)


class Link:
    """The connection between two hosts."""

    def __init__(self, weather: Weather) -> None:
        self.weather = weather
        self._whole_at = 0.0

    @property
    def is_cut(self) -> bool:
        """Return whether nothing is delivered now."""
        return trio.current_time() < self._whole_at

    def cut(self, seconds: float) -> None:
        """Deliver nothing for a while."""
        self._whole_at = max(self._whole_at, trio.current_time() + seconds)

    def mend(self) -> None:
        """Deliver again what is sent from now on."""
        self._whole_at = 0.0

    def delay(self) -> float:
        """Return how long a message that is sent now takes."""
        return max(0.0, self._whole_at - trio.current_time()) + self.weather.delay()

    async def wait_whole(self) -> None:
        """Return when the link delivers."""
        while self.is_cut:  # noqa: ASYNC110 - simulated time
            await trio.sleep(min(1.0, self._whole_at - trio.current_time()))


class _Plan:
    """The part of a plan that ``Network`` reads."""

    network_seconds = 0.0

    def __init__(self, weather: Weather) -> None:
        self.network_reset_bytes = weather.reset_bytes_mean


class _LinkNetwork(Network):
    """All connections over one link."""

    def __init__(self, link: Link, counts: Counter[str]) -> None:
        weather = link.weather
        super().__init__(_Plan(weather), weather.random, lambda: weather.is_calm, counts)
        self._link = link

    def _delay(self) -> float:
        return self._link.delay()

    def reset_all(self) -> None:
        """Reset all connections; messages under way may still arrive."""
        for connection in list(self._connections):
            connection.reset()


Address = tuple[str, int]
Accept = Callable[[NetworkStream], None]


class Wires:
    """The connections between all hosts, by the names of both ends."""

    def __init__(self, weather: Weather, counts: Counter[str]) -> None:
        self._weather = weather
        self._counts = counts
        self._networks: dict[tuple[str, str], _LinkNetwork] = {}
        self._links: dict[tuple[str, str], Link] = {}
        self._listening: dict[str, Accept] = {}

    def link(self, one: str, other: str) -> Link:
        """Return the link between two hosts, in both directions."""
        ends = (one, other) if one < other else (other, one)
        if ends not in self._links:
            self._links[ends] = Link(self._weather)
        return self._links[ends]

    def mend(self) -> None:
        """Repair all links that are cut."""
        for link in self._links.values():
            link.mend()

    def listen(self, host: str, accept: Accept) -> None:
        """Listen on a host: ``accept`` gets its connections."""
        self._listening[host] = accept

    def break_off(self, host: str) -> None:
        """Remove the host: it accepts nothing, and its connections are broken."""
        self._listening.pop(host, None)
        for ends, network in self._networks.items():
            if host in ends:
                network.reset_all()

    def reset(self, one: str, other: str) -> None:
        """Reset the connections between two hosts."""
        for ends in ((one, other), (other, one)):
            if ends in self._networks:
                self._networks[ends].reset_all()

    async def open_stream(self, own: str, host: str, port: int) -> NetworkStream:
        """Connect one host to another one. ``OSError``."""
        link = self.link(own, host)
        await trio.sleep(link.delay())
        await link.wait_whole()
        accept = self._listening.get(host)
        if accept is None:
            raise OSError(errno.ECONNREFUSED, f"nobody listens at {host}:{port}")
        network = self._networks.get((own, host))
        if network is None:
            network = self._networks[own, host] = _LinkNetwork(link, self._counts)
        client, server = network.connect()
        accept(server)
        return client
