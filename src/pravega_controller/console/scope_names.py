"""The names of all that a scope has, in order, so that a page can find some of them.

Owns: ``NamesSeen``, what looks at a scope have found, and how long it is kept.

Tables give names in the order of hashes, so an order needs all of them, and a scope may have very
many. So a look reads for a short time and the next one reads on, and all names are kept for longer
the longer it took to read them.

Invariants:
1. When a scope has more names than one look reads, a look does not wait for them; later looks have
   them all. Held by ``test_a_look_reads_for_a_short_time_and_the_next_reads_on``.
2. When a scope was made anew, names of the earlier one are not shown.
   Held by ``test_a_scope_that_was_made_anew_has_its_own_names``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

import trio

from pravega_controller.console.looks import LOOK_SECONDS, Looks, Track
from pravega_controller.controller import Controller

READ_SECONDS: Final = 0.1
"""Time, in seconds, after which a look reads no further page."""
KEPT_SHARE: Final = 100
"""Names are kept for so many times the time that their reading took ..."""
KEPT_SECONDS_MAX: Final = 30.0
"""... but at most so many seconds."""
NAMES_SHOWN_MAX: Final = 200
"""Maximum number of names of a kind on a page."""


@dataclass(frozen=True, slots=True)
class NamesSeen:
    """The streams, reader groups and key-value tables of a scope, each in order."""

    streams: Sequence[str]
    groups: Sequence[str]
    tables: Sequence[str]
    is_whole: bool
    """False if these are only those that were read so far."""
    began: float
    """The time of the event loop at which their reading began."""


@dataclass(slots=True)
class _Reading:
    """The names that were read so far, by kind, and where the rest begins."""

    scope_id: str
    began: float
    found: Mapping[str, list[str]] = field(default_factory=lambda: {"s": [], "g": [], "t": []})
    position: bytes = b""
    seconds: float = 0.0
    is_whole: bool = False

    def seen(self) -> NamesSeen:
        streams, groups, tables = map(sorted, self.found.values())
        return NamesSeen(streams, groups, tables, self.is_whole, self.began)

    def take(self, objects: Sequence[str], position: bytes) -> None:
        for each in objects:
            kind, _, name = each.partition("/")
            # Streams of the system belong to what is listed under its own name.
            if not name.startswith("_") and kind in self.found:
                self.found[kind].append(name)
        self.position, self.is_whole = position, not position


class NamesWatch:
    """Reads the names of one scope."""

    def __init__(self, controller: Controller, scope: str) -> None:
        self._scopes = controller.store.scopes
        self._scope = scope
        self._reading: _Reading | None = None
        self._whole: NamesSeen | None = None
        self._kept_until = 0.0

    async def take(self) -> NamesSeen:
        """Return the names: all, or those that are known so far. Raises ``ScopeNotFoundError``."""
        scope = await self._scopes.find_made(self._scope)
        now = trio.current_time()
        reading = self._reading
        if reading is None or reading.scope_id != scope.record.scope_id:
            self._whole = None
            reading = self._reading = _Reading(scope.record.scope_id, now)
        elif reading.is_whole:
            if now < self._kept_until:
                assert self._whole is not None
                return self._whole
            reading = self._reading = _Reading(reading.scope_id, now)
        spent = 0.0
        while not reading.is_whole and spent < READ_SECONDS:
            reading.take(*await self._scopes.objects_page(scope, reading.position))
            spent = trio.current_time() - now
        reading.seconds += spent
        if reading.is_whole:
            self._whole = reading.seen()
            kept = min(max(LOOK_SECONDS, KEPT_SHARE * reading.seconds), KEPT_SECONDS_MAX)
            self._kept_until = trio.current_time() + kept
        return self._whole or reading.seen()


def track_names(looks: Looks, controller: Controller, scope: str) -> Track[NamesSeen]:
    """Return the track of the names in a scope."""
    return looks.track(names_subject(scope), NamesWatch(controller, scope).take)


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
