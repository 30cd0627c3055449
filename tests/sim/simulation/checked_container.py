"""A container as its clients see it over a connection, with every answer checked.

Owns: ``CheckedContainer``, a ``SegmentContainer`` in front of the real one.

Invariants:
1. Every call and every answer passes the model, in the order in which the container gets and gives
   them, whenever the task that waits for it goes on; what the model forbids ends the run.
2. From ``disconnect`` on nobody hears the container any more: whoever waits is told that it is
   offline and does not know what became of the call.
"""

from __future__ import annotations

from collections.abc import (
    AsyncGenerator,
    Awaitable,
    Callable,
    Iterator,
    Mapping,
    Sequence,
)
from contextlib import aclosing
from dataclasses import dataclass
from functools import partial
from typing import TypeVar, cast

import trio

from segstore.api import (
    FindSample,
    HasRoom,
    OnAppended,
    OnRead,
    ReadHandle,
    ReadResult,
    SegmentContainer,
    SegmentInfo,
    SegmentSample,
    Waiter,
    ask_again,
    read_and_wait,
)
from segstore.errors import (
    ContainerOfflineError,
    InvalidRequestError,
    NoSuchSegmentError,
    SegmentError,
    SegmentSealedError,
    SegmentStoreError,
    SegmentTruncatedError,
    StorageError,
)
from segstore.model.attributes import (
    EVENT_COUNT,
    NULL_ATTRIBUTE_VALUE,
    AttributeId,
    AttributeUpdate,
)
from segstore.tiers.api import Buffer
from simulation.completions import told_of_completion
from simulation.model import Call, Kind, Model, outcome_of
from support.models.memory_segments import MemorySegment

T = TypeVar("T")
Pages = AsyncGenerator[list[tuple[AttributeId, int]], None]


@dataclass(eq=False, slots=True)
class Waiting:
    """A caller that waits for the container. ``give_up`` tells it that no answer will come."""

    what: str
    since: float
    give_up: Callable[[], None]
    read: CheckedRead | None = None


@dataclass(eq=False, slots=True)
class CheckedRead:
    """A read that is under way."""

    name: str
    offset: int
    at_call: MemorySegment | None
    start_at_call: int
    handle: ReadHandle | None = None
    was_put_off: bool = False
    cancel_waiting: Callable[[], None] = lambda: None

    def cancel(self) -> None:
        """Forget the read."""
        self.cancel_waiting()
        if self.handle is not None:
            self.handle.cancel()


class CheckedContainer:
    """A container whose answers are checked; see the module."""

    def __init__(
        self, container: SegmentContainer, model: Model, trace: Callable[[str], None]
    ) -> None:
        self._container = container
        self._model = model
        self._trace = trace
        self._waiting: dict[Waiting, None] = {}
        self._modified_ms: dict[int, int] = {}
        """The last change of each segment by its id, as last told."""
        self.connected = True
        self.accepting = True
        self.empty_answer: str | None = None

    # ---- Life ------------------------------------------------------------------------------------

    def refuse(self) -> None:
        """Take no more calls; what is under way is still answered."""
        self.accepting = False

    def disconnect(self) -> None:
        """Disconnect: the connection is lost, or the store is dead."""
        self.connected = self.accepting = False
        waiting, self._waiting = list(self._waiting), {}
        for entry in waiting:
            entry.give_up()

    def overdue(self, *, seconds: float) -> list[str]:
        """Return the calls that have waited this long; reads at the tail may."""
        now = trio.current_time()
        return [
            f"{entry.what}, {now - entry.since:.1f} s"
            for entry in self._waiting
            if now - entry.since > seconds
            if entry.read is None or not self._is_at_tail(entry.read)
        ]

    def waiting_reads(self) -> list[str]:
        """Return the reads that wait: none may when the container has ended, since their readers'
        connections go on."""
        return [entry.what for entry in self._waiting if entry.read is not None]

    def _is_at_tail(self, read: CheckedRead) -> bool:
        segment = self._model.segments.by_name.get(read.name)
        return segment is not None and not segment.sealed and read.offset >= len(segment.data)

    def _wait(
        self, what: str, give_up: Callable[[], None], read: CheckedRead | None = None
    ) -> Waiting:
        waiting = Waiting(what, trio.current_time(), give_up, read)
        self._waiting[waiting] = None
        return waiting

    def _done(self, waiting: Waiting) -> bool:
        """Return whether a caller still waits for the answer that came."""
        return self._waiting.pop(waiting, waiting) is None

    def _forget(self, waiting: Waiting) -> None:
        self._waiting.pop(waiting, None)

    async def _ask(self, what: str, request: Callable[[], Awaitable[T]]) -> T:
        """Wait for an answer, unless the connection is lost before it."""
        if not self.accepting:
            raise ContainerOfflineError("no connection")
        with trio.CancelScope() as scope:
            waiting = self._wait(what, scope.cancel)
            try:
                answer = await request()
                if self.connected:
                    return answer
            except SegmentStoreError:
                if self.connected:
                    raise
            finally:
                self._done(waiting)
        raise ContainerOfflineError(f"the connection was lost: {what}")

    # ---- Changes ---------------------------------------------------------------------------------

    async def _change(
        self,
        what: str,
        names: tuple[str, ...],
        apply: Callable[[], int],
        request: Callable[[], Awaitable[int | None]],
        kind: Kind = Kind.OTHER,
    ) -> int:
        if not self.accepting:
            raise ContainerOfflineError("no connection")
        call = self._model.call(what, names, apply, kind)
        noted = False

        def note(error: SegmentStoreError | None) -> None:
            nonlocal noted
            if noted or not self.connected:
                return
            noted = True
            if error is None:
                self._model.took_effect(call)
            elif isinstance(error, SegmentError):
                self._model.answered(call, outcome_of(error))
            elif isinstance(error, StorageError):
                self._model.withdrawn(call)

        note.refused = partial(self._refused, call)  # type: ignore[attr-defined]

        # Tasks that were answered at the same time go on in any order, some steps later, and calls
        # that are answered by callback do not wait for them.
        try:
            with told_of_completion(note):
                number = await self._ask(what, request)
        except SegmentStoreError as error:
            note(error)
            raise
        answer = 0 if number is None else number
        self._model.answered(call, answer)
        return answer

    def violated(self, what: str) -> Exception:
        """Return the error to raise when the store has broken a promise that is not about one
        call."""
        return self._model.violated(what)

    @property
    def container_id(self) -> int:
        """Return the container's number."""
        return self._container.container_id

    @property
    def may_answer(self) -> bool:
        """See ``SegmentContainer``."""
        return self._container.may_answer

    async def confirm_answer(self) -> None:
        """See ``SegmentContainer``."""
        await self._container.confirm_answer()

    async def create_segment(
        self, name: str, *, attributes: Mapping[AttributeId, int] | None = None
    ) -> None:
        """See ``SegmentContainer``."""
        values = dict(attributes or {})
        self._model.note(name, values)
        await self._change(
            f"create {name} {short(values)}",
            (name,),
            partial(self._model.create, name, values),
            partial(self._container.create_segment, name, attributes=values),
            Kind.CREATE,
        )

    async def delete_segment(self, name: str) -> None:
        """See ``SegmentContainer``."""
        await self._change(
            f"delete {name}",
            (name,),
            partial(self._model.segments.delete, name),
            partial(self._container.delete_segment, name),
            Kind.DELETE,
        )

    def append_nowait(
        self,
        name: str,
        data: Buffer,
        *,
        attribute_updates: Sequence[AttributeUpdate] = (),
        expected_offset: int | None = None,
        on_complete: OnAppended,
    ) -> None:
        """See ``SegmentContainer``."""
        if not self.accepting:
            on_complete(ContainerOfflineError("no connection"), -1)
            return
        updates = tuple(attribute_updates)
        kept = bytes(data)
        what = f"append {name} {len(kept)} bytes {short(updates)} at {expected_offset}"
        self._model.note(name, [update.attribute_id for update in updates])
        apply = partial(self._model.segments.append, name, kept, updates, expected_offset)
        self._container.append_nowait(
            name,
            data,
            attribute_updates=updates,
            expected_offset=expected_offset,
            on_complete=self._completion(what, (name,), apply, Kind.WRITE, on_complete),
        )

    def merge_nowait(
        self,
        target: str,
        source: str,
        *,
        attribute_updates: Sequence[AttributeUpdate] = (),
        on_complete: OnAppended,
    ) -> None:
        """See ``SegmentContainer``."""
        if not self.accepting:
            on_complete(ContainerOfflineError("no connection"), -1)
            return
        updates = tuple(attribute_updates)
        what = f"merge {source} into {target} {short(updates)}"
        names = (target, source) if source != target else (target,)
        self._model.note(target, [EVENT_COUNT, *(update.attribute_id for update in updates)])
        apply = partial(self._model.segments.merge, target, source, updates)
        self._container.merge_nowait(
            target,
            source,
            attribute_updates=updates,
            on_complete=self._completion(what, names, apply, Kind.MERGE, on_complete),
        )

    def _completion(
        self,
        what: str,
        names: tuple[str, ...],
        apply: Callable[[], int],
        kind: Kind,
        on_complete: OnAppended,
    ) -> OnAppended:
        """Return a callback that checks the answer to a change and passes it on."""
        call = self._model.call(what, names, apply, kind)
        lost = ContainerOfflineError(f"the connection was lost: {what}")
        waiting = self._wait(what, partial(on_complete, lost, -1))

        def complete(error: SegmentStoreError | None, length: int) -> None:
            if not self._done(waiting):
                return
            if error is None:
                self._model.answered(call, length)
            elif isinstance(error, SegmentError):
                self._model.answered(call, outcome_of(error))
            elif isinstance(error, StorageError):
                self._model.withdrawn(call)
            on_complete(error, length)

        complete.refused = partial(self._refused, call)  # type: ignore[attr-defined]
        return complete

    def _refused(self, call: Call) -> None:
        if self.connected:
            self._model.refused(call)

    async def append(
        self,
        name: str,
        data: Buffer,
        *,
        attribute_updates: Sequence[AttributeUpdate] = (),
        expected_offset: int | None = None,
    ) -> int:
        """See ``SegmentContainer``."""
        waiter = Waiter()
        self.append_nowait(
            name,
            data,
            attribute_updates=attribute_updates,
            expected_offset=expected_offset,
            on_complete=waiter.complete,
        )
        return await waiter.wait()

    async def update_attributes(self, name: str, updates: Sequence[AttributeUpdate]) -> None:
        """See ``SegmentContainer``."""
        self._model.note(name, [update.attribute_id for update in updates])
        await self._change(
            f"update attributes of {name} {short(updates)}",
            (name,),
            partial(self._model.segments.update_attributes, name, tuple(updates)),
            partial(self._container.update_attributes, name, updates),
            Kind.WRITE,
        )

    async def seal_segment(self, name: str) -> int:
        """See ``SegmentContainer``."""
        return await self._change(
            f"seal {name}",
            (name,),
            partial(self._model.segments.seal, name),
            partial(self._container.seal_segment, name),
            Kind.SEAL,
        )

    async def truncate_segment(self, name: str, *, offset: int) -> None:
        """See ``SegmentContainer``."""

        def apply() -> int:
            self._model.segments.truncate(name, offset)
            return 0

        await self._change(
            f"truncate {name} at {offset}",
            (name,),
            apply,
            partial(self._container.truncate_segment, name, offset=offset),
            Kind.TRUNCATE,
        )

    async def merge_segment(
        self, target: str, source: str, *, attribute_updates: Sequence[AttributeUpdate] = ()
    ) -> int:
        """See ``SegmentContainer``."""
        updates = tuple(attribute_updates)
        self._model.note(target, [EVENT_COUNT, *(update.attribute_id for update in updates)])
        return await self._change(
            f"merge {source} into {target} {short(updates)}",
            (target, source) if source != target else (target,),
            partial(self._model.segments.merge, target, source, updates),
            partial(self._container.merge_segment, target, source, attribute_updates=updates),
            Kind.MERGE,
        )

    def load_samples(self, find_last: FindSample) -> Iterator[SegmentSample]:
        """See ``SegmentContainer``."""
        return self._container.load_samples(find_last)

    def unpersisted_attribute_count(self, name: str) -> int:
        """See ``SegmentContainer``."""
        if not self.accepting:
            raise ContainerOfflineError("no connection")
        return self._container.unpersisted_attribute_count(name)

    async def wait_in_flight(self, name: str) -> None:
        """See ``SegmentContainer``."""
        await self._ask(f"wait for {name}", partial(self._container.wait_in_flight, name))

    # ---- Sights ----------------------------------------------------------------------------------

    async def activate(self, name: str) -> None:
        """See ``SegmentContainer``."""
        await self._ask(f"activate {name}", partial(self._container.activate, name))

    async def info(self, name: str) -> SegmentInfo:
        """Activate a segment and return its state.

        Raises ``NoSuchSegmentError`` if there is none.
        """
        await self.activate(name)
        try:
            return self.segment_info(name)
        except NoSuchSegmentError:
            self._check_absence(name)
            raise

    async def find_info(self, name: str) -> SegmentInfo:
        """See ``SegmentContainer``."""
        try:
            info = await self._ask(f"info of {name}", partial(self._container.find_info, name))
        except NoSuchSegmentError:
            self._check_absence(name)
            raise
        self._check_info(name, info)
        return info

    def segment_info(self, name: str) -> SegmentInfo:
        """See ``SegmentContainer``: only of those in memory."""
        if not self.accepting:
            raise ContainerOfflineError("no connection")
        info = self._container.segment_info(name)
        self._check_info(name, info)
        before = self._modified_ms.get(info.segment_id, 0)
        if info.last_modified_ms < before:
            raise self._model.violated(f"the last change was at {before} before: {info}")
        self._modified_ms[info.segment_id] = info.last_modified_ms
        return info

    def _check_absence(self, name: str) -> None:
        segments = self._model.segments.by_name
        self._model.prove(name, lambda: name not in segments, f"{name} does not exist")

    def _check_info(self, name: str, info: SegmentInfo) -> None:
        def holds() -> bool:
            segment = self._model.segments.by_name.get(name)
            return segment is not None and (
                info.start_offset,
                info.length,
                info.sealed,
                info.segment_type,
            ) == (segment.start_offset, len(segment.data), segment.sealed, segment.segment_type)

        self._model.prove(name, holds, f"{info}")
        if not 0 <= info.storage_length <= info.length:
            raise self._model.violated(f"more is stored than there is: {info}")

    async def get_attributes(
        self, name: str, attribute_ids: Sequence[AttributeId]
    ) -> dict[AttributeId, int]:
        """See ``SegmentContainer``."""
        seen: list[dict[AttributeId, int] | None] = []

        def note() -> None:
            segment = self._model.segments.by_name.get(name)
            values = None
            if segment is not None:
                present = segment.attributes
                values = {key: present[key] for key in attribute_ids if key in present}
            if not seen or seen[-1] != values:
                seen.append(values)

        note()
        self._model.on_commit.append(note)
        what = f"get attributes of {name}"
        try:
            try:
                values = await self._ask(
                    what, partial(self._container.get_attributes, name, attribute_ids)
                )
            except NoSuchSegmentError:
                self._model.prove(name, lambda: None in seen, f"{name} does not exist")
                raise
            self._model.prove(name, lambda: values in seen, f"{what}: {short(values)}")
        finally:
            self._model.on_commit.remove(note)
        self._trace(f"{what}: {short(values)}")
        return values

    def attribute_now(self, name: str, attribute_id: AttributeId) -> int | None:
        """See ``SegmentContainer``."""
        if not self.accepting:
            return None
        value = self._container.attribute_now(name, attribute_id)
        if value is None:
            return None

        def holds() -> bool:
            segment = self._model.segments.by_name.get(name)
            return segment is not None and value == segment.attributes.get(
                attribute_id, NULL_ATTRIBUTE_VALUE
            )

        self._model.prove(name, holds, f"{name} has {short(attribute_id)}: {value}")
        return value

    def bytes_now(self, name: str, *, offset: int, length_max: int) -> Buffer:
        """See ``SegmentContainer``."""
        if not self.accepting:
            return b""
        data = self._container.bytes_now(name, offset=offset, length_max=length_max)
        end = offset + len(data)

        def holds() -> bool:
            segment = self._model.segments.by_name.get(name)
            return segment is not None and memoryview(segment.data)[offset:end] == data

        if data:
            self._model.prove(name, holds, f"{name} has {len(data)} bytes at {offset}")
        return data

    async def attribute_iterator(
        self, name: str, *, first: AttributeId, last: AttributeId
    ) -> Pages:
        """See ``SegmentContainer``; checked when it is read to the end."""
        what = f"iterate over the attributes of {name}"
        seen: list[dict[AttributeId, int]] = []

        def note() -> None:
            segment = self._model.segments.by_name.get(name)
            values = dict(segment.extended_attributes(first, last)) if segment else {}
            if not seen or seen[-1] != values:
                seen.append(values)

        found: dict[AttributeId, int] = {}

        def holds() -> bool:
            if not all(any(values.get(key) == found[key] for values in seen) for key in found):
                return False
            return all(key in found for key in seen[0] if all(key in values for values in seen))

        note()
        self._model.on_commit.append(note)
        try:
            iterator = self._container.attribute_iterator(name, first=first, last=last)
            async with aclosing(cast("Pages", iterator)) as pages:
                while (page := await self._ask(what, partial(anext, pages, None))) is not None:
                    found.update(page)
                    yield page
            self._model.prove(name, holds, f"{what}: {short(found)}")
        except NoSuchSegmentError:
            self._model.prove(
                name, lambda: name not in self._model.segments.by_name, f"{name} does not exist"
            )
            raise
        finally:
            self._model.on_commit.remove(note)

    def read_nowait(
        self,
        name: str,
        *,
        offset: int,
        length_max: int,
        on_complete: OnRead,
        has_room: HasRoom | None = None,
    ) -> ReadHandle | None:
        """See ``SegmentContainer``."""
        what = f"read {name} at {offset}, {length_max} bytes"
        if not self.accepting:
            on_complete(ContainerOfflineError("no connection"), None)
            return None
        segment = self._model.segments.by_name.get(name)
        read = CheckedRead(name, offset, segment, segment.start_offset if segment else 0)
        lost = ContainerOfflineError(f"the connection was lost: {what}")
        waiting = self._wait(what, partial(on_complete, lost, None), read)
        read.cancel_waiting = partial(self._forget, waiting)

        def ask_for_room() -> bool:
            read.was_put_off = has_room is not None and not has_room()
            return not read.was_put_off

        def complete(error: SegmentStoreError | None, result: ReadResult | None) -> None:
            if self._done(waiting):
                self._check_read(what, read, length_max, error, result)
                on_complete(error, result)
                if result == ask_again(offset) and not read.was_put_off:
                    self._ask_at_once(name, offset)

        read.handle = self._container.read_nowait(
            name,
            offset=offset,
            length_max=length_max,
            on_complete=complete,
            has_room=ask_for_room,
        )
        return None if read.handle is None else read

    def _ask_at_once(self, name: str, offset: int) -> None:
        """Read as a client whose next request comes in the same moment, while its store still finds
        the container that fails."""
        segment = self._model.segments.by_name.get(name)
        read = CheckedRead(name, offset, segment, segment.start_offset if segment else 0)
        waiting = self._wait(f"read {name} at {offset}, asked at once", lambda: None, read)
        self._container.read_nowait(
            name, offset=offset, length_max=1, on_complete=lambda *_: self._forget(waiting)
        )

    async def read(self, name: str, *, offset: int, length_max: int) -> ReadResult:
        """See ``SegmentContainer``."""
        return await read_and_wait(
            lambda complete: self.read_nowait(
                name, offset=offset, length_max=length_max, on_complete=complete
            )
        )

    def _check_read(
        self,
        what: str,
        read: CheckedRead,
        length_max: int,
        error: SegmentStoreError | None,
        result: ReadResult | None,
    ) -> None:
        if isinstance(error, SegmentError):
            self._trace(f"{what}: {outcome_of(error)}")
            self._model.prove(
                read.name, partial(self._explains_error, read, error), f"{what}: {error}"
            )
        elif result is not None:
            self._trace(f"{what}: {len(result.data)} bytes")
            if result.offset != read.offset or len(result.data) > length_max:
                raise self._model.violated(f"{what}: got {len(result.data)} at {result.offset}")
            if result.data:
                self._model.prove(
                    read.name,
                    partial(self._explains_data, read, result),
                    f"{what}: {len(result.data)} bytes that are not there",
                )
            elif result.end_of_segment:
                self._model.prove(
                    read.name,
                    partial(self._is_end, read.name, read.offset),
                    f"{what}: end of segment",
                )
            elif self.accepting and not read.was_put_off:
                # As it must when it fails; whoever ends it orderly asks whether it was early.
                self.empty_answer = f"{what}: nothing, although the container serves"

    def _explains_error(self, read: CheckedRead, error: SegmentError) -> bool:
        segment = self._model.segments.by_name.get(read.name)
        if isinstance(error, NoSuchSegmentError):
            return segment is None
        if segment is None:
            return False
        if isinstance(error, SegmentTruncatedError):
            return segment.start_offset == error.start_offset > read.offset
        if isinstance(error, SegmentSealedError):
            return segment.sealed and read.offset >= len(segment.data)
        if isinstance(error, InvalidRequestError):
            return segment.sealed and read.offset > len(segment.data)
        return False

    def _explains_data(self, read: CheckedRead, result: ReadResult) -> bool:
        """Return whether the segment, as it was at the call or is now, has these bytes there."""
        segment = self._model.segments.by_name.get(read.name)
        end = read.offset + len(result.data)
        for candidate in (read.at_call, segment):
            if candidate is None:
                continue
            if candidate is read.at_call and read.offset < read.start_at_call:
                continue
            data = candidate.data
            if memoryview(data)[read.offset : end] == result.data:
                return not result.end_of_segment or (candidate.sealed and end == len(data))
        return False

    def _is_end(self, name: str, offset: int) -> bool:
        segment = self._model.segments.by_name.get(name)
        return segment is not None and segment.sealed and offset == len(segment.data)


def short(value: object) -> str:
    """Return a short text of attributes and their updates."""
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{short(key)}: {value[key]}" for key in value) + "}"
    if isinstance(value, AttributeUpdate):
        verb = value.update_type.name.lower() if value.update_type else "none"
        numbers = [str(n).replace(str(NULL_ATTRIBUTE_VALUE), "null") for n in value[2:]]
        return f"{short(value.attribute_id)} {verb} {numbers[0]} ({numbers[1]})"
    if isinstance(value, bytes):
        return value.hex().lstrip("0") or "0"
    if isinstance(value, Sequence) and not isinstance(value, str):
        return "[" + ", ".join(map(short, value)) + "]"
    return str(value)
