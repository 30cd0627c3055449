"""The identity of tier 2: the store that it belongs to, and the claims in it.

Owns: the names of identities and claims in tier 2, and the check that a tier 2 belongs to the
store; docs/formats/identities.md describes the bytes, docs/adr/0201 explains why. One listing of
tier 2 shows all identities and claims. Refusals follow the rules in the package's docstring.

Invariants:
1. When a tier 2 has the identity of another store and not that of this one, it is refused. Held by
   ``test_another_store_s_tier_2_is_refused``.
2. When a tier 2 has no identity, a complete store refuses it, because its own tier 2 may not be
   mounted. Held by ``test_a_tier_2_that_is_not_mounted_is_refused``.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Final, Protocol

from segstore.errors import IdentityError, IdentityProblem
from segstore.ownership.data_directory import DataDirectory
from segstore.tiers.api import ChunkStorage

STORE_PREFIX: Final = "_system/store$"
TIER_2: Final = "tier 2"

_IDENTITY: Final = re.compile(r"identity-([0-9a-f]{32})", re.ASCII)
_CLAIM: Final = re.compile(r"claim-([0-9]+)-([0-9]{10})-([0-9a-f]{16})", re.ASCII)


class TierTwoPlace(Protocol):
    """The parts of the configured tier 2 that its identity needs."""

    @property
    def where(self) -> str:
        """Return the directory or location of tier 2, which users see, and which the next start
        compares with its own."""
        ...

    @property
    def chunks_under(self) -> Callable[[int], ChunkStorage]:
        """Return the function that returns the chunks for the owner of a claim, by its number."""
        ...

    @property
    def make(self) -> Callable[[], Awaitable[None]]:
        """Return the function that makes tier 2, and checks that a new store can use it."""
        ...


@dataclass(frozen=True, slots=True, order=True)
class Claim:
    """A claim of tier 2 for the containers of one journal."""

    turn: int
    owner: str


@dataclass(slots=True)
class TierTwoIdentity:
    """The identities and claims that a listing of tier 2 shows."""

    store_ids: set[str] = field(default_factory=set)
    claims: dict[int, list[Claim]] = field(default_factory=dict)
    """The claims of each journal, in ascending order."""

    @classmethod
    async def read(cls, chunks: ChunkStorage) -> TierTwoIdentity:
        """List the identities and claims in tier 2. Raises ``StorageError``."""
        found = cls()
        for each in await chunks.list_chunks(STORE_PREFIX):
            name = each.name.removeprefix(STORE_PREFIX)
            if match := _IDENTITY.fullmatch(name):
                found.store_ids.add(match[1])
            elif match := _CLAIM.fullmatch(name):
                claim = Claim(int(match[2]), match[3])
                found.claims.setdefault(int(match[1]), []).append(claim)
        for claims in found.claims.values():
            claims.sort()
        return found


def identity_name(store_id: str) -> str:
    """Return the name of the chunk that says that a tier 2 belongs to a store."""
    return f"{STORE_PREFIX}identity-{store_id}"


def claim_name(journal: int, claim: Claim) -> str:
    """Return the name of a claim's chunk."""
    return f"{STORE_PREFIX}claim-{journal}-{claim.turn:010d}-{claim.owner}"


def refuse_other_store(directory: DataDirectory, where: str, store_ids: set[str]) -> None:
    """Raise ``IdentityError`` when a tier 2 has the identity of another store."""
    if others := sorted(store_ids - {directory.store_id}):
        raise IdentityError(
            f"data directory {directory.path} expects tier 2 of store {directory.store_id} in"
            f" {where}, which belongs to another store ({', '.join(others)}): name the right place,"
            " or an empty one for a new store",
            tier=TIER_2,
            problem=IdentityProblem.FOREIGN,
        )


def _missing_tier_2(directory: DataDirectory, where: str) -> IdentityError:
    last = f", where it was before is {directory.tier_2}" if directory.tier_2 != where else ""
    return IdentityError(
        f"data directory {directory.path} expects tier 2 of store {directory.store_id} in {where},"
        f" and it is not there{last}: mount what is missing or name the right place; nothing was"
        " written",
        tier=TIER_2,
        problem=IdentityProblem.MISSING,
    )


async def check_tier_two(directory: DataDirectory, tier: TierTwoPlace) -> TierTwoIdentity:
    """Check that tier 2 has the identity of a complete store, and return what it has. Raises
    ``IdentityError`` when it does not."""
    found = await TierTwoIdentity.read(tier.chunks_under(1))
    if directory.store_id not in found.store_ids:
        refuse_other_store(directory, tier.where, found.store_ids)
        raise _missing_tier_2(directory, tier.where)
    # If there is another identity, too, its store was refused when it was new.
    return found
