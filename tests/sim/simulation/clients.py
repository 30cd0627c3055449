"""Clients of segments: what they do, and what they can tell without the model.

Owns: ``Client`` and the kinds of it that write and read segments.

Invariants:
1. A client draws from its own numbers, so what it does depends on the seed and on the answers.
2. A writer keeps an event until it is acknowledged; after a lost connection it asks for the number
   of its last stored event and sends the rest again. At the end each of its events is in the
   stream once, in order: ``Stream.check`` parses the bytes.
"""

from __future__ import annotations

import struct
from collections import deque
from contextlib import aclosing
from dataclasses import dataclass, field
from random import Random
from typing import Final

import trio

from pravega_wire.names import transient_segment_name
from segstore.errors import (
    BadAttributeUpdateError,
    BadOffsetError,
    ContainerOfflineError,
    InvalidRequestError,
    NoSuchSegmentError,
    SegmentError,
    SegmentExistsError,
    SegmentSealedError,
    SegmentStoreError,
    StorageError,
)
from segstore.model.attributes import (
    ATTRIBUTE_SEGMENT_TYPE,
    EVENT_COUNT,
    NULL_ATTRIBUTE_VALUE,
    ROLLOVER_SIZE,
    AttributeUpdate,
    AttributeUpdateType,
    SegmentType,
)
from simulation.host import Host, Session
from simulation.model import Model
from simulation.plan import Plan

RETRY_SECONDS = 0.1
TRANSACTION: Final = 1 << 15
"""Added to the writer's number in the events of transactions."""

_EVENT: Final = struct.Struct(">4sHII")
_MAGIC: Final = b"evnt"


@dataclass
class Budget:
    """The number of operations that the clients of all containers have left."""

    operations_left: int


@dataclass
class World:
    """The common state of the clients of one container."""

    host: Host
    model: Model
    plan: Plan
    random: Random
    budget: Budget
    stream: Stream = field(init=False)

    def __post_init__(self) -> None:
        self.stream = Stream(self)

    @property
    def scope(self) -> str:
        """Return the scope of the container's segments."""
        return self.host.scope

    def spend(self) -> bool:
        """Take one operation of the run's number; False when there are no more."""
        self.budget.operations_left -= 1
        if self.budget.operations_left < 0:
            self.host.calm_down()
            return False
        return True

    def some_bytes(self, random: Random) -> bytes:
        """Return data of any length; most are short."""
        bytes_max = random.choice([0, 1, 20, 200, 200, 1000, self.plan.bytes_max])
        return random.randbytes(random.randint(0, min(bytes_max, self.plan.bytes_max)))


class Client:
    """A client that makes steps until the run has no operations left, through every end of the
    store."""

    def __init__(self, world: World, number: int) -> None:
        self.world = world
        self.number = number
        self.random = Random(world.random.getrandbits(64))

    async def run(self) -> None:
        """Work until the end."""
        await self.pause()
        while self.world.spend():
            await self.attempt()
            await self.pause()
        await self.finish()

    async def attempt(self) -> None:
        """Do one step; try again later if the store goes away or cannot reach tier 2."""
        session = await self.world.host.connect()
        try:
            await self.step(session)
        except ContainerOfflineError:
            await trio.sleep(0.001)
        except StorageError:
            await trio.sleep(RETRY_SECONDS)

    async def pause(self) -> None:
        """Pause, so that others run and time passes."""
        seconds = self.world.plan.pause_seconds
        if seconds and self.random.random() < 0.7:
            await trio.sleep(self.random.expovariate(1 / seconds))
        else:
            await trio.lowlevel.checkpoint()

    async def step(self, session: Session) -> None:
        """Do one operation."""
        raise NotImplementedError

    async def finish(self) -> None:
        """Do what is left at the end."""

    def segment_name(self, what: str) -> str:
        """Return a name of this client's own."""
        return f"{self.world.scope}/{what}-{self.number}/0.#epoch.0"


# ---- The stream ----------------------------------------------------------------------------------


class Stream:
    """A stream of segments that replace each other, as when a stream is scaled."""

    def __init__(self, world: World) -> None:
        self._world = world
        self.number = 0
        self.sent: dict[int, int] = {}
        self.acknowledged: dict[int, int] = {}
        self.transactions: dict[tuple[int, int], bool | None] = {}

    def segment(self, number: int) -> str:
        """Return the name of a segment."""
        return f"{self._world.scope}/stream/{number}.#epoch.{number}"

    async def create(self, session: Session, number: int) -> None:
        """Make sure that the segment is there."""
        attributes = {EVENT_COUNT: 0}
        if self._world.random.random() < 0.3:
            attributes[ROLLOVER_SIZE] = 20_000
        try:
            await session.container.create_segment(self.segment(number), attributes=attributes)
        except SegmentExistsError:
            return

    def check(self) -> None:
        """Check that each writer's events are in the stream once and in order.

        Transactions whole or not.
        """
        found: dict[int, int] = {}
        transactions: dict[tuple[int, int], int] = {}
        for number in range(self.number + 1):
            segments = self._world.model.incarnations.get(self.segment(number), [])
            for segment in segments:
                for writer, event, count in parse_events(bytes(segment.data)):
                    if writer & TRANSACTION:
                        key = (writer, event)
                        transactions[key] = transactions.get(key, 0) + 1
                        assert transactions[key] <= count, f"transaction {key} is there twice"
                        continue
                    expected = found.get(writer, -1) + 1
                    assert event == expected, f"writer {writer}: {event} follows {expected - 1}"
                    found[writer] = event
        for writer, acknowledged in self.acknowledged.items():
            stored = found.get(writer, -1)
            assert acknowledged <= stored <= self.sent[writer], (
                f"writer {writer} has {stored} events, {acknowledged} acknowledged"
            )
        for key, committed in self.transactions.items():
            if committed is not None:
                assert (key in transactions) == committed, f"transaction {key}: {committed}"


def make_event(writer: int, event: int, count: int, filler: bytes) -> bytes:
    """Make an event's bytes. ``count`` is how many events a transaction has."""
    return _EVENT.pack(_MAGIC, writer, event, len(filler) << 8 | count) + filler


def parse_events(data: bytes) -> list[tuple[int, int, int]]:
    """Return writer, number and count of every event."""
    events = []
    position = 0
    while position < len(data):
        magic, writer, event, lengths = _EVENT.unpack_from(data, position)
        assert magic == _MAGIC, f"no event begins at {position}"
        events.append((writer, event, lengths & 255))
        position += _EVENT.size + (lengths >> 8)
    assert position == len(data), "the last event is incomplete"
    return events


class EventWriter(Client):
    """A writer that writes events exactly once, several in flight."""

    def __init__(self, world: World, number: int) -> None:
        super().__init__(world, number)
        self.writer_id = bytes([7]) * 15 + bytes([number])
        self.segment_number = 0
        self.next_event = 0
        self.last_stored = -1
        self.unacknowledged: deque[tuple[int, bytes]] = deque()
        self.in_flight = 0
        self.window = self.random.choice([1, 3, 10])
        self.session: Session | None = None
        self.sealed = False
        self.idle = trio.Event()
        world.stream.sent[number] = world.stream.acknowledged[number] = -1

    async def step(self, session: Session) -> None:
        """Write a few events, or wait for acknowledgements."""
        if self.session is not session:
            await self.reconnect(session)
        for _ in range(self.random.randint(1, self.window)):
            filler = self.world.some_bytes(self.random)
            event = make_event(self.number, self.next_event, 1, filler)
            self.unacknowledged.append((self.next_event, event))
            self.world.stream.sent[self.number] = self.next_event
            self.next_event += 1
            self.send(session, *self.unacknowledged[-1])
        if self.random.random() < 0.3 or self.in_flight >= 2 * self.window:
            await self.wait_idle()
        if self.sealed:
            await self.move_on(session)

    async def wait_idle(self) -> None:
        while self.in_flight:
            self.idle = trio.Event()
            await self.idle.wait()

    async def reconnect(self, session: Session) -> None:
        """Read what is stored, and send the rest again."""
        await self.wait_idle()
        self.session = None
        name = self.world.stream.segment(self.segment_number)
        try:
            values = await session.container.get_attributes(name, [self.writer_id])
        except NoSuchSegmentError:
            await self.world.stream.create(session, self.segment_number)
            values = {}
        stored = values.get(self.writer_id)
        if stored is not None:
            acknowledged = self.world.stream.acknowledged[self.number]
            assert acknowledged <= stored < self.next_event, (
                f"writer {self.number}: {stored} is stored, {acknowledged} was acknowledged"
            )
        while self.unacknowledged and stored is not None and self.unacknowledged[0][0] <= stored:
            self.acknowledge()
        self.last_sent = NULL_ATTRIBUTE_VALUE if stored is None else stored
        self.session = session
        self.sealed = False
        for event in list(self.unacknowledged):
            self.send(session, *event)

    def acknowledge(self) -> None:
        number, _ = self.unacknowledged.popleft()
        self.world.stream.acknowledged[self.number] = number

    def send(self, session: Session, number: int, data: bytes) -> None:
        """Append one event, on the condition that the one before it was stored last."""
        updates = [
            AttributeUpdate(
                self.writer_id, AttributeUpdateType.REPLACE_IF_EQUALS, number, self.last_sent
            ),
            AttributeUpdate(EVENT_COUNT, AttributeUpdateType.ACCUMULATE, 1),
        ]
        self.last_sent = number
        self.in_flight += 1

        def complete(error: SegmentStoreError | None, length: int) -> None:
            self.in_flight -= 1
            if error is None:
                if self.unacknowledged[0][0] != number:
                    raise self.world.model.violated(f"writer {self.number}: {number} is early")
                self.acknowledge()
            elif isinstance(error, SegmentSealedError):
                self.sealed = True
            else:
                self.session = None
            if self.in_flight == 0:
                self.idle.set()

        session.container.append_nowait(
            self.world.stream.segment(self.segment_number),
            data,
            attribute_updates=updates,
            on_complete=complete,
        )

    async def move_on(self, session: Session) -> None:
        """Move on to the successor of a sealed segment."""
        await self.wait_idle()
        if not self.sealed:
            return
        # What the sealed segment has is known only from itself.
        await self.reconnect(session)
        await self.wait_idle()
        if self.session is None:
            return
        if not self.unacknowledged and not self.sealed:
            return
        self.segment_number += 1
        self.world.stream.number = max(self.world.stream.number, self.segment_number)
        await self.world.stream.create(session, self.segment_number)
        await self.reconnect(session)

    async def finish(self) -> None:
        """Wait until everything is acknowledged."""
        while self.unacknowledged:
            # A container that has just failed refuses at once, until its end gets about.
            await trio.lowlevel.checkpoint()
            session = await self.world.host.connect()
            try:
                if self.session is not session:
                    await self.reconnect(session)
                await self.wait_idle()
                if self.sealed:
                    await self.move_on(session)
            except (ContainerOfflineError, StorageError):
                await trio.sleep(RETRY_SECONDS)


class Scaler(Client):
    """A client that seals the stream's newest segment now and then, and truncates and deletes
    old ones."""

    async def step(self, session: Session) -> None:
        stream = self.world.stream
        container = session.container
        await trio.sleep(self.random.random() * self.world.plan.pause_seconds * 10)
        with_luck = self.random.random()
        try:
            if with_luck < 0.2:
                number = stream.number
                await container.seal_segment(stream.segment(number))
            elif with_luck < 0.8:
                name = stream.segment(self.random.randint(0, stream.number))
                info = await container.find_info(name)
                offset = self.random.randint(info.start_offset, info.length)
                await container.truncate_segment(name, offset=offset)
            elif stream.number > 1:
                name = stream.segment(self.random.randrange(stream.number - 1))
                info = await container.find_info(name)
                if info.sealed:
                    await container.truncate_segment(name, offset=info.length)
        except SegmentError:
            return


class TransactionClient(Client):
    """A client that writes segments that become part of the stream whole, or vanish."""

    def __init__(self, world: World, number: int) -> None:
        super().__init__(world, number)
        self.count = 0

    async def step(self, session: Session) -> None:
        self.count += 1
        container, stream = session.container, self.world.stream
        key = (TRANSACTION | self.number, self.count)
        stream.transactions[key] = None
        name = f"{stream.segment(stream.number)}#transaction.{self.number:016x}{self.count:016x}"
        await container.create_segment(name, attributes={EVENT_COUNT: 0})
        events = self.random.randint(0, 4)
        updates = [AttributeUpdate(EVENT_COUNT, AttributeUpdateType.ACCUMULATE, 1)]
        for _ in range(events):
            await self.pause()
            event = make_event(*key, events, self.world.some_bytes(self.random))
            await container.append(name, event, attribute_updates=updates)
        stream.transactions[key] = False
        if self.random.random() < 0.5:
            await container.seal_segment(name)
        if self.random.random() < 0.2:
            await container.delete_segment(name)
            return
        stream.transactions[key] = None
        try:
            await self.commit(name, with_sealed=self.random.random() < 0.2)
        except SegmentSealedError:
            stream.transactions[key] = False
        else:
            stream.transactions[key] = events > 0

    async def commit(self, name: str, *, with_sealed: bool) -> None:
        """Merge, and ask again until there is an answer: a source that is gone was merged."""
        stream = self.world.stream
        target = stream.segment(stream.number)
        updates = [AttributeUpdate(bytes([9]) * 16, AttributeUpdateType.ACCUMULATE, 1)]
        asked = False
        while True:
            session = await self.world.host.connect()
            try:
                await session.container.merge_segment(target, name, attribute_updates=updates)
            except NoSuchSegmentError as error:
                if error.segment == name and asked:
                    return
                if error.segment == name:
                    raise
                await stream.create(session, stream.number)
            except (ContainerOfflineError, StorageError):
                asked = True
                await trio.sleep(RETRY_SECONDS)
            else:
                return


# ---- Segments of their own -----------------------------------------------------------------------


class ConditionalWriter(Client):
    """A client that appends at the offset where it believes the segment's end."""

    def __init__(self, world: World, number: int) -> None:
        super().__init__(world, number)
        self.length = 0

    async def step(self, session: Session) -> None:
        # Two of them share a segment.
        name = f"{self.world.scope}/conditional-{self.number // 2}/0.#epoch.0"
        try:
            self.length = await session.container.append(
                name, self.world.some_bytes(self.random), expected_offset=self.length
            )
        except BadOffsetError as error:
            self.length = error.actual
        except NoSuchSegmentError:
            self.length = 0
            with_size = {ROLLOVER_SIZE: 5000} if self.random.random() < 0.5 else {}
            try:
                await session.container.create_segment(name, attributes=with_size)
            except SegmentExistsError:
                return


class AttributeClient(Client):
    """A client that changes attributes by every verb, with and without data."""

    def __init__(self, world: World, number: int) -> None:
        super().__init__(world, number)
        self.id_count = self.random.choice([3, 30, 300])

    async def step(self, session: Session) -> None:
        name = f"{self.world.scope}/attributes/0.#epoch.0"
        container = session.container
        updates = self.updates()
        try:
            choice = self.random.randrange(10)
            if choice == 9:
                await self.iterate(session, name)
            elif choice < 3:
                data = self.world.some_bytes(self.random)
                await container.append(name, data, attribute_updates=updates)
            elif choice < 5:
                await container.get_attributes(name, [update.attribute_id for update in updates])
            else:
                await container.update_attributes(name, updates)
        except (BadAttributeUpdateError, InvalidRequestError):
            return
        except NoSuchSegmentError:
            try:
                await container.create_segment(name)
            except SegmentExistsError:
                return

    async def iterate(self, session: Session, name: str) -> None:
        """Iterate over a range of the attributes."""
        numbers = sorted(self.random.sample(range(self.id_count + 1), 2))
        first, last = (struct.pack(">QQ", 5, number) for number in numbers)
        pages = session.container.attribute_iterator(name, first=first, last=last)
        async with aclosing(pages) as pages:
            async for _ in pages:
                await self.pause()

    def updates(self) -> list[AttributeUpdate]:
        """Draw several changes; most of them can be accepted."""
        choose = self.random
        count = choose.choice([1, 1, 2, min(50, self.id_count)])
        numbers = choose.sample(range(self.id_count), min(count, self.id_count))
        kinds = [AttributeUpdateType.REPLACE, AttributeUpdateType.ACCUMULATE]
        if choose.random() < 0.4:
            kinds = list(AttributeUpdateType)
        return [
            AttributeUpdate(
                struct.pack(">QQ", 5, number),
                choose.choice(kinds),
                choose.choice([choose.randrange(10), choose.randrange(10), NULL_ATTRIBUTE_VALUE])
                if kinds[0] != AttributeUpdateType.REPLACE
                else choose.randrange(10),
                choose.choice([choose.randrange(10), NULL_ATTRIBUTE_VALUE]),
            )
            for number in numbers
        ]


class LifecycleClient(Client):
    """A client that makes and deletes segments under few names."""

    async def step(self, session: Session) -> None:
        container, choose = session.container, self.random
        name = f"{self.world.scope}/lifecycle/{choose.randrange(3)}.#epoch.0"
        kind = choose.choices(
            ["append", "create", "transient", "seal", "truncate", "merge", "delete"],
            [8, 5, 2, 1, 3, 2, 2],
        )[0]
        try:
            if kind == "append":
                await container.append(name, self.world.some_bytes(choose))
            elif kind == "create":
                await container.create_segment(name, attributes={EVENT_COUNT: 2})
            elif kind == "transient":
                await self.merge_transient(session, name)
            elif kind == "seal":
                await container.seal_segment(name)
            elif kind == "truncate":
                length = (await container.find_info(name)).length
                await container.truncate_segment(name, offset=choose.randint(0, length + 1))
            elif kind == "merge":
                source = f"{self.world.scope}/lifecycle/{choose.randrange(3)}.#epoch.0"
                await container.merge_segment(name, source)
            else:
                await container.delete_segment(name)
        except SegmentError:
            return

    async def merge_transient(self, session: Session, name: str) -> None:
        """Bring a large event into a segment in pieces, or give it up halfway."""
        container = session.container
        transient = transient_segment_name(
            name, self.random.randbytes(16), self.random.randbytes(16)
        )
        kind = {ATTRIBUTE_SEGMENT_TYPE: int(SegmentType.TRANSIENT)}
        await container.create_segment(transient, attributes=kind)
        length = 0
        for _ in range(self.random.randrange(4)):
            length = await container.append(
                transient, self.world.some_bytes(self.random), expected_offset=length
            )
            await self.pause()
        if self.random.random() < 0.7:
            await container.merge_segment(name, transient)


class TailReader(Client):
    """A client that follows the stream's segments.

    The container in between checks what it reads.
    """

    def __init__(self, world: World, number: int) -> None:
        super().__init__(world, number)
        self.segment_number = 0
        self.offset = 0

    async def step(self, session: Session) -> None:
        name = self.world.stream.segment(self.segment_number)
        patience = self.random.choice([0.01, 1, 30])
        length_max = self.random.choice([1, 100, 10_000, 1 << 20])
        try:
            with trio.move_on_after(patience):
                result = await session.container.read(
                    name, offset=self.offset, length_max=length_max
                )
                self.offset += len(result.data)
                if result.end_of_segment and self.segment_number < self.world.stream.number:
                    self.segment_number, self.offset = self.segment_number + 1, 0
        except SegmentSealedError:
            return
        except SegmentError:
            try:
                self.offset = (await session.container.info(name)).start_offset
            except SegmentError:
                self.offset = 0


class HistoricalReader(Client):
    """A client that reads anything anywhere."""

    async def step(self, session: Session) -> None:
        names = list(self.world.model.attribute_ids)
        if not names:
            return
        name = self.random.choice(names)
        try:
            info = await session.container.find_info(name)
            offset = self.random.randint(0, info.length)
            with trio.move_on_after(self.random.choice([0.01, 100])):
                await session.container.read(
                    name, offset=offset, length_max=self.random.choice([1, 5000, 1 << 20])
                )
        except SegmentError:
            return
