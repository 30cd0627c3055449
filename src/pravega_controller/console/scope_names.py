"""The names of all that a scope has, in order, so that a page can find some of them.

Owns: ``NamesSeen``, what one look at a scope has found. Tables give names in the order of hashes,
so an order needs all of them; looks at a scope are shared as others are.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from typing import Final

from pravega_controller.console.looks import Looks, Track
from pravega_controller.controller import Controller

NAMES_READ_MAX: Final = 400_000
"""Maximum number of names that are read of a scope; most streams have two."""
NAMES_SHOWN_MAX: Final = 200
"""Maximum number of names of a kind on a page."""


@dataclass(frozen=True, slots=True)
class NamesSeen:
    """The streams, reader groups and key-value tables of a scope, each in order."""

    streams: Sequence[str]
    groups: Sequence[str]
    tables: Sequence[str]
    is_whole: bool
    """False if the scope has more names than were read."""


async def see_names(controller: Controller, scope: str) -> NamesSeen:
    """Return the names in a scope now. Raises ``ScopeNotFoundError``."""
    found: dict[str, list[str]] = {"s": [], "g": [], "t": []}
    count = 0
    async with aclosing(controller.store.scopes.all_objects(scope)) as pages:
        async for page in pages:
            for each in page:
                kind, _, name = each.partition("/")
                # Streams of the system belong to what is listed under its own name.
                if not name.startswith("_") and kind in found:
                    found[kind].append(name)
            count += len(page)
            if count >= NAMES_READ_MAX:
                break
    streams, groups, tables = map(sorted, found.values())
    return NamesSeen(streams, groups, tables, is_whole=count < NAMES_READ_MAX)


def track_names(looks: Looks, controller: Controller, scope: str) -> Track[NamesSeen]:
    """Return the track of the names in a scope."""

    async def take() -> NamesSeen:
        return await see_names(controller, scope)

    return looks.track(names_subject(scope), take)


def names_subject(scope: str) -> tuple[str, str]:
    """Return the subject of looks at the names in a scope."""
    return ("names", scope)


@dataclass(frozen=True, slots=True)
class NamesPart:
    """A page of names: which, how many there are, and which pages are beside it."""

    names: Sequence[str]
    count: int
    number: int
    page_count: int

    @property
    def first(self) -> int:
        """Return the number of the first name, from 1."""
        return 1 + (self.number - 1) * NAMES_SHOWN_MAX


def choose(
    names: Sequence[str], wanted: str, number: int, may_read: Callable[[str], bool]
) -> NamesPart:
    """Return a page of the names that contain ``wanted``, in any case, and that may be read."""
    wanted = wanted.casefold()
    found = [each for each in names if wanted in each.casefold() and may_read(each)]
    page_count = max(1, -(-len(found) // NAMES_SHOWN_MAX))
    number = min(number, page_count)
    begin = (number - 1) * NAMES_SHOWN_MAX
    return NamesPart(found[begin : begin + NAMES_SHOWN_MAX], len(found), number, page_count)
