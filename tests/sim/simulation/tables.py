"""Clients of tables, and what a table's bytes say about every answer.

Owns: ``TableTruth``, the history of every key as the segment's bytes tell it, and ``TableClient``.

Invariants:
1. A table's history is in its segment, in order; the model holds the segment's bytes.
2. Every answer is that of the table at some moment between the call and the answer; an
   acknowledged update is in the history, and its conditions held where it stands.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterator
from typing import NamedTuple

from pravega_wire.commands import NO_VERSION, NOT_EXISTS, TableEntry, TableKey
from segstore.errors import (
    NoSuchSegmentError,
    SegmentExistsError,
    SegmentStoreError,
    TableKeyMissingError,
    TableKeyVersionError,
)
from segstore.tables.entries import parse_entries
from simulation.clients import Client, World
from simulation.host import Host, Session
from simulation.model import Model
from support.models.memory_segments import MemorySegment


class State(NamedTuple):
    """The state of a key from the offset ``end`` on. Without a value, the key is absent."""

    end: int
    version: int
    value: bytes | None


ABSENT = State(0, NOT_EXISTS, None)


class TableTruth:
    """One table's history."""

    def __init__(self, segment: MemorySegment) -> None:
        self.segment = segment
        self._position = 0
        self._states: dict[bytes, list[State]] = {}

    def refresh(self) -> None:
        """Take in what was appended."""
        data = memoryview(self.segment.data)[self._position :]
        for entry in parse_entries(self.segment.name, bytes(data), offset=self._position):
            end = entry.offset + entry.length
            states = self._states.setdefault(entry.key, [])
            states.append(State(end, entry.version, entry.value))
            self._position = end

    def state(self, key: bytes, *, length: int) -> State:
        """Return the key's state when the segment had this length."""
        states = self._states.get(key, [])
        index = bisect_right(states, length, key=lambda state: state.end)
        return states[index - 1] if index else ABSENT

    def states(self, key: bytes, *, since: int) -> Iterator[State]:
        """Yield the key's state when the segment had the length ``since``, and all its states
        after that."""
        self.refresh()
        yield self.state(key, length=since)
        for state in self._states.get(key, []):
            if state.end > since:
                yield state

    def present(self) -> dict[bytes, State]:
        """Return every key that is there now."""
        self.refresh()
        newest = {key: states[-1] for key, states in self._states.items()}
        return {key: state for key, state in newest.items() if state.value is not None}

    def known_keys(self) -> list[bytes]:
        """Return every key that ever was."""
        return list(self._states)


def holds(condition: int, state: State) -> bool:
    """Return whether a condition of the table protocol holds in a state."""
    if condition == NO_VERSION:
        return True
    if condition == NOT_EXISTS:
        return state.value is None
    return state.value is not None and state.version == condition


class TableClient(Client):
    """A client that reads and changes tables that it shares with others."""

    def __init__(self, world: World, number: int) -> None:
        super().__init__(world, number)
        self.known: dict[tuple[str, bytes], int] = {}
        self.truths: dict[str, TableTruth] = {}

    @property
    def model(self) -> Model:
        """Return the model of the tables' segments."""
        return self.world.model

    async def step(self, session: Session) -> None:
        choose = self.random
        kind, key_length = choose.choice([("hash", 0), ("fixed", 2)])
        name = f"{self.world.scope}/_tables/{kind}"
        try:
            await choose.choices([self.update, self.remove, self.get, self.iterate], [6, 2, 4, 1])[
                0
            ](session, name)
        except NoSuchSegmentError:
            try:
                await session.tables.create(name, key_length=key_length)
            except SegmentExistsError:
                return

    def truth(self, name: str) -> TableTruth | None:
        """Return the history of the table that has this name now."""
        segment = self.model.segments.by_name.get(name)
        if segment is None:
            return None
        truth = self.truths.get(name)
        if truth is None or truth.segment is not segment:
            truth = self.truths[name] = TableTruth(segment)
        truth.refresh()
        return truth

    def key(self) -> bytes:
        return b"k%c" % (97 + self.random.randrange(8))

    def condition(self, name: str, key: bytes) -> int:
        """Return mostly the version that the client believes, sometimes nonsense."""
        known = self.known.get((name, key), NOT_EXISTS)
        return self.random.choice([NO_VERSION, NO_VERSION, known, known, NOT_EXISTS, 17])

    def prove(self, name: str, test: Callable[[], bool], what: str) -> None:
        """Check that the answer was right at some moment."""
        self.model.prove(name, test, what)

    async def update(self, session: Session, name: str) -> None:
        """Write one to three keys."""
        keys = dict.fromkeys(self.key() for _ in range(self.random.randint(1, 3)))
        entries = [
            TableEntry(
                TableKey(key, self.condition(name, key)),
                self.random.randbytes(self.random.choice([0, 10, 49, 300])),
            )
            for key in keys
        ]
        since = self.length(name)
        try:
            versions = await session.tables.update(name, entries)
        except (TableKeyMissingError, TableKeyVersionError) as error:
            self.check_refusal(name, since, [entry.key for entry in entries], error)
            return
        for entry, version in zip(entries, versions, strict=True):
            key, condition = entry.key.key, entry.key.version
            self.known[name, key] = version
            what = f"update of {key!r} in {name} on {condition} to version {version}"
            assert version >= since, what

            def is_there(entry: TableEntry = entry, version: int = version) -> bool:
                truth = self.truth(name)
                return truth is not None and any(
                    state.version == version and state.value == entry.value
                    for state in truth.states(entry.key.key, since=since)
                )

            self.prove(name, is_there, what)
            truth = self.truth(name)
            assert truth is not None
            if not holds(condition, truth.state(key, length=version)):
                raise self.model.violated(f"{what}: {truth.state(key, length=version)} was before")

    async def remove(self, session: Session, name: str) -> None:
        """Remove a key."""
        key = self.key()
        asked = TableKey(key, self.condition(name, key))
        since = self.length(name)
        try:
            await session.tables.remove(name, [asked])
        except (TableKeyMissingError, TableKeyVersionError) as error:
            self.check_refusal(name, since, [asked], error)
            return
        self.known.pop((name, key), None)

        def was_removed() -> bool:
            truth = self.truth(name)
            if truth is None:
                return False
            states = list(truth.states(key, since=since))
            pairs = zip([ABSENT, *states], states, strict=False)
            return any(
                after.value is None
                and (asked.version in (NO_VERSION, NOT_EXISTS) or holds(asked.version, before))
                for before, after in pairs
            )

        self.prove(name, was_removed, f"removal of {asked} from {name}")

    def check_refusal(
        self, name: str, since: int, keys: list[TableKey], error: SegmentStoreError
    ) -> None:
        """Check that some condition did not hold at some moment."""

        def did_not_hold() -> bool:
            truth = self.truth(name)
            return truth is not None and any(
                not holds(key.version, state)
                for key in keys
                for state in truth.states(key.key, since=since)
            )

        for key in keys:
            self.known.pop((name, key.key), None)
        self.prove(name, did_not_hold, f"{name} refused {keys}: {error}")

    async def get(self, session: Session, name: str) -> None:
        """Read a few keys."""
        keys = [self.key() for _ in range(self.random.randint(1, 3))]
        since = self.length(name)
        for entry in await session.tables.read(name, keys):
            self.check_entry(name, since, entry)

    def check_entry(self, name: str, since: int, entry: TableEntry) -> None:
        """Check an entry, or its absence, that a client was shown."""
        key, version = entry.key.key, entry.key.version
        value = None if version == NOT_EXISTS else entry.value
        if value is not None:
            self.known[name, key] = version

        def was_so() -> bool:
            truth = self.truth(name)
            if truth is None:
                return False
            return any(
                state.value == value and (value is None or state.version == version)
                for state in truth.states(key, since=since)
            )

        self.prove(name, was_so, f"{name} showed {key!r} as version {version}, {value!r}")

    async def iterate(self, session: Session, name: str) -> None:
        """Iterate over the whole table."""
        since = self.length(name)
        truth = self.truth(name)
        seen = set()
        for entry in await all_entries(session, name, page=self.random.randint(1, 5)):
            self.check_entry(name, since, entry)
            seen.add(entry.key.key)
        # Brings the model up to the table's length now: a key that was there all the time shows.
        await session.container.info(name)
        if truth is None or truth is not self.truth(name):
            return
        for key in truth.known_keys():
            always = all(state.value is not None for state in truth.states(key, since=since))
            if always and key not in seen:
                raise self.model.violated(f"an iteration of {name} left out {key!r}")

    def length(self, name: str) -> int:
        """Return the length that the table has at least."""
        segment = self.model.segments.by_name.get(name)
        return 0 if segment is None else len(segment.data)


async def all_entries(session: Session, name: str, *, page: int) -> list[TableEntry]:
    """Return every entry of a table."""
    entries: list[TableEntry] = []
    fixed = name.endswith("fixed")
    token = b""
    while True:
        if fixed:
            start = entries[-1].key.key if entries else b""
            found = await session.tables.iterate_entries(
                name, count_max=page + 1, from_key=start, to_key=b""
            )
            fresh = [entry for entry in found.entries if entry.key.key != start]
        else:
            found = await session.tables.iterate_entries(
                name, count_max=page, continuation_token=token
            )
            fresh = list(found.entries)
        if not fresh:
            return entries
        entries += fresh
        token = found.continuation_token


async def check_tables(host: Host, model: Model) -> None:
    """Check, when nothing is under way, that every table shows exactly what its bytes say."""
    session = await host.connect()
    for name in list(model.segments.by_name):
        if "/_tables/" not in name:
            continue
        present = TableTruth(model.segments.by_name[name]).present()
        found = {entry.key.key: entry for entry in await all_entries(session, name, page=3)}
        if found.keys() != present.keys():
            raise model.violated(f"{name} has {sorted(found)}, its bytes {sorted(present)}")
        for key, state in present.items():
            entry = found[key]
            if (entry.key.version, entry.value) != (state.version, state.value):
                raise model.violated(f"{name} shows {entry}, its bytes say {state}")
