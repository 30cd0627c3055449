"""A container with inactive segments answers like a model in which every segment is active."""

from __future__ import annotations

from random import Random
from typing import Any

import trio
from hypothesis import given, settings
from hypothesis import strategies as st

from segstore.container import Container
from support.faults.crashing_tiers import CrashingTiers, checkpoint, evict
from support.models.memory_container import MemoryContainer
from support.models.model_workload import ModelWorkload

NAMES = [f"scope/stream/{number}.#epoch.0" for number in range(3)]
WRITERS = [bytes([number]) * 16 for number in range(2)]
KINDS = {
    "append": 6,
    "create": 4,
    "seal": 1,
    "truncate": 2,
    "merge": 2,
    "delete": 2,
    "attributes": 2,
    "evict": 5,
    "evict_unflushed": 2,
    "checkpoint": 2,
    "compact": 2,
    "compare": 1,
    "crash": 2,
    "stop": 1,
}


class Run:
    """One container and its model, in one life of the container after another."""

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        self.tiers = CrashingTiers()
        self.model = MemoryContainer(0)
        self.workload = ModelWorkload(
            self.random, NAMES, WRITERS, lengths=[0, 1, 50, 3000], truncate_max=4000
        )
        self.options: dict[str, Any] = {
            "segment_count_max": self.random.choice([1, 4096]),
            "page_bytes_max": self.random.choice([0, 1 << 20]),
        }

    async def lives(self, kinds: list[str]) -> None:
        steps = list(kinds)
        while steps:
            async with self.tiers.open(drain_seconds=5.0, **self.options) as container:
                await self.life(container, steps)

    async def life(self, container: Container, steps: list[str]) -> None:
        with trio.CancelScope(shield=True):
            if self.random.random() < 0.5:
                await self.compare(container)
        while steps:
            kind = steps.pop(0)
            if kind == "crash":
                self.tiers.crash()
                return
            if kind == "stop":
                return
            with trio.fail_after(60):
                await self.step(container, kind)
        await self.compare(container)

    async def step(self, container: Container, kind: str) -> None:
        if kind == "evict":
            await evict(container)
        elif kind == "evict_unflushed":
            await evict(container, flush=False)
        elif kind == "checkpoint":
            await checkpoint(container)
        elif kind == "compare":
            await self.compare(container)
        elif kind == "compact":
            if container.parts.metadata.records is not None:
                await container.parts.eviction.compaction.step()
        else:
            await self.workload.operate(container, self.model, kind)

    async def compare(self, container: Container) -> None:
        await self.workload.compare(container, self.model)
        by_id = [segment.segment_id for segment in container.parts.metadata.by_name.values()]
        assert len(by_id) == len(set(by_id))


kinds = st.lists(
    st.sampled_from([kind for kind, weight in KINDS.items() for _ in range(weight)]),
    min_size=5,
    max_size=60,
)


@settings(max_examples=150, deadline=None)
@given(kinds=kinds, seed=st.integers(0, 2**32))
def test_a_container_equals_the_model_whatever_is_inactive(kinds: list[str], seed: int) -> None:
    trio.run(Run(seed).lives, kinds)
