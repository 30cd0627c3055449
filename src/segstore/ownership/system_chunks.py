"""The names of a container's system chunks in tier 2, which contain the epoch of their owner.

Owns: the kinds of system chunks, their names, and their order;
docs/formats/chunk-metadata.md describes them.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from segstore.tiers.api import ChunkInfo

CLAIM: Final = "claim"
SNAPSHOT: Final = "snapshot"
JOURNAL: Final = "journal"
CONTAINER: Final = "container"
RECOVERING: Final = "recovering"
_NAME: Final = re.compile(
    r"(claim|snapshot|journal|container|recovering)-([0-9]{10})-([0-9]{10})", re.ASCII
)


@dataclass(frozen=True, slots=True)
class SystemChunk:
    """One system chunk in a listing."""

    kind: str
    epoch: int
    number: int
    name: str
    length: int

    @property
    def order(self) -> tuple[int, int]:
        """Return the key by which chunks of one kind are sorted."""
        return self.epoch, self.number


def system_prefix(container_id: int) -> str:
    """Return the beginning of the names of a container's system chunks."""
    return f"_system/chunks-{container_id}$"


def system_name(prefix: str, kind: str, epoch: int, number: int) -> str:
    """Return the name of a system chunk."""
    return f"{prefix}{kind}-{epoch:010d}-{number:010d}"


def parse_system_chunk(prefix: str, info: ChunkInfo) -> SystemChunk | None:
    """Return the system chunk with the name of a listed chunk; None if that is no system chunk."""
    match = _NAME.fullmatch(info.name.removeprefix(prefix))
    if match is None:
        return None
    return SystemChunk(match[1], int(match[2]), int(match[3]), info.name, info.length)
