"""The plan of one seed: sizes, rates of faults, and the ends of the store's lives.

Owns: ``Plan``. Every seed leaves some features out, so that others meet without them.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from random import Random

KIB = 1024
MIB = 1024 * KIB
SEEDS_PER_FULL = 4
"""One of so many seeds has little space."""
SEEDS_PER_SHARED = 5
"""One of so many seeds has several containers on one journal."""


@dataclass(frozen=True, slots=True)
class Plan:
    """A plan drawn from a seed. Times are in simulated seconds."""

    lives: int
    """Lives of the store before the calm one in which everything is checked."""
    life_steps: int
    """About how many scheduler steps a life has."""
    operations: int
    """Number of operations that the clients make together."""
    writers: int
    conditional_writers: int
    attribute_clients: int
    transaction_clients: int
    lifecycle_clients: int
    tail_readers: int
    historical_readers: int
    table_clients: int
    with_scaling: bool
    pause_seconds: float
    """Clients pause about so long between operations."""
    bytes_max: int
    """Appends have up to so many bytes, most have much fewer."""
    cache_bytes: int
    attributes_cached: int
    """Number of attributes of a segment, and of three segments, that stay in memory."""
    page_cache_bytes: int
    """For the pages of attribute indexes."""
    held_bytes_max: int
    """The container flushes and checkpoints when it holds so much of the journal."""
    operations_max: int
    """Writers stop when tier 2 has not taken so many operations."""
    attributes_dirty_max: int
    """The same for changed attributes."""
    journal_files_max: int
    disk_seconds: float
    """A batch takes about so long to become durable."""
    tier_2_seconds: float
    tier_2_fault_rate: float
    tier_2_outage_rate: float
    """The part of the time in which tier 2, or some kind of call, is out of service."""
    disk_fault_rate: float
    """Share of the lives in which a write or sync of the journal's disk fails."""
    flip_bits: bool
    drain_seconds: float
    wire_writers: int
    """Clients that come over the network, besides those that call the container itself."""
    wire_readers: int
    network_seconds: float
    """A piece of a message takes about so long."""
    network_reset_bytes: int
    """Connections are reset after about so many bytes; 0 for never."""
    active_segments_max: int
    """Above this idle segments leave memory."""
    active_seconds_max: float
    """Idle for so long, any segment does."""
    half_frame_clients: int
    deaf_readers: int
    long_request_clients: int
    with_objects: bool
    """Tier 2 is an object store, where requests are lost or late."""
    containers: int = 1
    """So many share the journal, and the operations."""
    damage_rate: float = 0.0
    """Share of the lives in which a record of one container is damaged."""
    tier_2_bytes: int = 0
    """Tier 2 has so much space, 0 for all that is wanted: it fills up, and is freed."""
    disk_files: int = 0
    """The same for the journal's disk, in files."""
    shares_disk: bool = False
    """Tier 2 is on the journal's disk."""
    damages_chunks: bool = False
    """Bits of chunks are wrong for a while, wherever there is a checksum."""

    @classmethod
    def of_seed(cls, seed: int, random: Random) -> Plan:
        """Return the plan of a seed, whose numbers come from ``random``: some have several
        containers."""
        plan = cls.draw(random)
        if seed % SEEDS_PER_FULL == 1:
            return plan.full(Random(seed))
        if seed % SEEDS_PER_SHARED == SEEDS_PER_SHARED - 1:
            plan = plan.shared(random)
        return replace(plan, damages_chunks=seed % 2 == 0 and not plan.with_objects)

    def full(self, random: Random) -> Plan:
        """Return this plan with little space in either tier, or in one disk for both."""
        bytes_max = random.choice([20 * KIB, 100 * KIB])
        return replace(
            self,
            operations=800,
            writers=random.randint(1, 4),
            with_scaling=True,
            transaction_clients=min(self.transaction_clients, 1),
            table_clients=min(self.table_clients, 1),
            pause_seconds=min(self.pause_seconds, 0.1),
            bytes_max=bytes_max,
            held_bytes_max=8 * MIB,
            tier_2_bytes=random.choice([400, 800, 1600]) * KIB,
            disk_files=random.choice([0, 3, 4]),
            shares_disk=random.random() < 0.5 and not self.with_objects,
            disk_fault_rate=0,
        )

    def shared(self, random: Random) -> Plan:
        """Return this plan with several containers.

        In some of them damage is looked for: then lives leave several files that are needed.
        """
        operations = min(self.operations, 400)
        containers = random.choice([2, 3, 4])
        plan = replace(
            self,
            containers=containers,
            operations=operations,
            # What each writes until it looks again how full the journal is has to have room.
            journal_files_max=self.journal_files_max * containers,
        )
        if random.random() < 0.65:
            return replace(
                plan,
                bytes_max=random.choice([4 * KIB, 60 * KIB, 300 * KIB]),
                cache_bytes=random.choice([2, 8, 16]) * MIB,
                held_bytes_max=random.choice([1, 4, 8]) * MIB,
            )
        return replace(
            plan,
            damage_rate=0.8,
            lives=4,
            life_steps=600,
            operations=450,
            writers=random.randint(2, 4),
            attribute_clients=0,
            table_clients=0,
            pause_seconds=min(self.pause_seconds, 0.01),
            bytes_max=800 * KIB,
            cache_bytes=16 * MIB,
            held_bytes_max=8 * MIB,
            tier_2_seconds=random.choice([0.05, 1]),
            tier_2_outage_rate=0.5,
            drain_seconds=0,
        )

    @classmethod
    def draw(cls, random: Random) -> Plan:
        """Draw the plan of a run whose numbers come from ``random``."""

        def sometimes(count: int) -> int:
            return random.choice([0, 1, count])

        return cls(
            lives=random.choice([2, 4, 8]),
            life_steps=random.choice([50, 150, 400, 1200]),
            operations=random.choice([200, 400, 800]),
            writers=random.randint(1, 4),
            conditional_writers=sometimes(2),
            attribute_clients=sometimes(2),
            transaction_clients=sometimes(2),
            lifecycle_clients=sometimes(2),
            tail_readers=sometimes(2),
            historical_readers=sometimes(2),
            table_clients=sometimes(3),
            with_scaling=random.random() < 0.5,
            pause_seconds=random.choice([0, 0.001, 0.01, 0.1, 1]),
            bytes_max=random.choice([100, 4 * KIB, 60 * KIB, 300 * KIB]),
            cache_bytes=random.choice([2, 2, 4, 8]) * MIB,
            attributes_cached=random.choice([1, 5, 50, 1000]),
            page_cache_bytes=random.choice([1, 16 * KIB, MIB]),
            held_bytes_max=random.choice([1, 1, 2, 8]) * 512 * KIB,
            operations_max=random.choice([20, 250_000]),
            attributes_dirty_max=random.choice([60, 131_072]),
            journal_files_max=random.choice([16, 32]),
            disk_seconds=random.choice([0, 0.0002, 0.005]),
            tier_2_seconds=random.choice([0, 0.001, 0.05, 1]),
            tier_2_fault_rate=random.choice([0, 0, 0.05, 0.3]),
            tier_2_outage_rate=random.choice([0, 0, 0.2, 0.5]),
            disk_fault_rate=random.choice([0, 0, 0.5]),
            flip_bits=random.random() < 0.5,
            drain_seconds=random.choice([0, 1, 5]),
            wire_writers=random.choice([0, 1, 3]),
            wire_readers=sometimes(2),
            network_seconds=random.choice([0, 0.001, 0.1]),
            network_reset_bytes=random.choice([0, 2 * KIB, 20 * KIB, 200 * KIB]),
            active_segments_max=random.choice([0, 3, 2500]),
            active_seconds_max=random.choice([0.2, 5, 1e9]),
            with_objects=random.random() < 0.25,
            half_frame_clients=random.choice([0, 0, 1, 6]),
            deaf_readers=random.choice([0, 0, 1, 4]),
            long_request_clients=int(random.random() < 0.1),
        )
