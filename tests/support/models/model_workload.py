"""Random operations that a container and a model are given alike.

Owns: ``ModelWorkload``.

Invariants:
1. What is done depends on the numbers it draws alone.
2. Both answer alike, and show the same segments.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from random import Random
from typing import Any, Final

from segstore.api import SegmentInfo
from segstore.container import Container
from segstore.errors import SegmentError
from segstore.model.attributes import (
    EVENT_COUNT,
    AttributeId,
    AttributeUpdate,
    AttributeUpdateType,
)
from support.models.memory_container import MemoryContainer

READ_BYTES: Final = 1 << 20
METHODS: Final = {
    "append": "append",
    "create": "create_segment",
    "seal": "seal_segment",
    "truncate": "truncate_segment",
    "merge": "merge_segment",
    "delete": "delete_segment",
    "attributes": "update_attributes",
}
"""The kinds of operations, and what they call."""


@dataclass(frozen=True, slots=True)
class ModelWorkload:
    """Appends have one of ``lengths``; segments are truncated below ``truncate_max``."""

    random: Random
    names: Sequence[str]
    writers: Sequence[AttributeId]
    lengths: Sequence[int]
    truncate_max: int

    async def operate(self, container: Container, model: MemoryContainer, kind: str) -> None:
        """Do one operation on one of the segments, here and in the model; both must answer
        alike."""
        choose = self.random
        arguments: dict[str, Any] = {}
        positional: list[Any] = [choose.choice(self.names)]
        if kind == "append":
            positional.append(choose.randbytes(choose.choice(self.lengths)))
            arguments["attribute_updates"] = self._updates()
        elif kind == "truncate":
            arguments["offset"] = choose.randrange(self.truncate_max)
        elif kind == "merge":
            positional.append(choose.choice(self.names))
        elif kind == "attributes":
            positional.append(self._updates())
        outcomes: list[object] = []
        for target in (container, model):
            try:
                outcomes.append(await getattr(target, METHODS[kind])(*positional, **arguments))
            except SegmentError as error:
                outcomes.append((type(error), error.segment))
        assert outcomes[0] == outcomes[1], (kind, positional[:1], arguments, outcomes)

    def _updates(self) -> list[AttributeUpdate]:
        choose = self.random
        verb = choose.choice([AttributeUpdateType.REPLACE, AttributeUpdateType.REPLACE_IF_GREATER])
        return [
            AttributeUpdate(choose.choice(self.writers), verb, choose.randrange(1000)),
            AttributeUpdate(EVENT_COUNT, AttributeUpdateType.ACCUMULATE, choose.randrange(1, 9)),
        ]

    async def compare(self, container: Container, model: MemoryContainer) -> None:
        """Compare every segment, active or not, with the model's."""
        for name in self.names:
            await container.activate(name)
            found, expected = _info(container, name), _info(model, name)
            if isinstance(found, type) or isinstance(expected, type):
                assert found == expected, name
                continue
            facts = (found.start_offset, found.length, found.sealed)
            assert facts == (expected.start_offset, expected.length, expected.sealed), name
            ids = [*self.writers, EVENT_COUNT]
            attributes = await container.get_attributes(name, ids)
            assert attributes == await model.get_attributes(name, ids), name
            await self._compare_bytes(container, model, found)

    async def _compare_bytes(
        self, container: Container, model: MemoryContainer, info: SegmentInfo
    ) -> None:
        offset = info.start_offset
        while offset < info.length:
            result = await container.read(info.name, offset=offset, length_max=READ_BYTES)
            wanted = await model.read(info.name, offset=offset, length_max=len(result.data))
            assert result.data == wanted.data, (info.name, offset)
            offset += len(result.data)


def _info(container: Container | MemoryContainer, name: str) -> SegmentInfo | type[SegmentError]:
    """Return the segment's state, or why there is none."""
    try:
        return container.segment_info(name)
    except SegmentError as error:
        return type(error)
