"""Clients that ask two controllers for the same at once: one of them wins.

Owns: ``Rivals``, the calls and their answers; the models of scopes, streams, groups and
transactions with which ``linearizability`` compares the answers.

Nobody asks again after a call without an answer: it may be carried out later, by whoever finishes
the work of its controller. Each object has a name of its own, and what other clients do does not
touch it.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final, TypeAlias

import trio
from msgspec import structs

from controllers.clients import Client, GoneError, Side
from controllers.ledger import ViolationError
from controllers.linearizability import (
    UNKNOWN,
    Operation,
    State,
    Step,
    TooManyOrdersError,
    find_order,
)
from pravega_controller.controller import Controller
from pravega_controller.errors import (
    AlreadyExistsError,
    GenerationMismatchError,
    IllegalStateError,
    InvalidRequestError,
    KeyValueTableNotFoundError,
    ReaderGroupNotFoundError,
    ScalePreconditionError,
    ScopeNotFoundError,
    StoreAnswerError,
    StoreUnavailableError,
    StreamNotFoundError,
    StreamNotSealedError,
    StreamSealedError,
    TableNotEmptyError,
    VersionConflictError,
)
from pravega_controller.metadata.records import ReaderGroupConfiguration
from pravega_controller.rules.streams import Segment, fixed_configuration
from pravega_controller.tables.key_value_tables import KeyValueTableConfiguration

RIVALS_MAX = 4
NEAR_SECONDS = (0.002, 0.01, 0.04)
"""Rivals mostly ask within so many seconds: one request to a segment store takes 4 ms."""
FAR_SECONDS = 3.0
NEW_SHARE = 0.25
"""Part of the times that rivals begin with an object that is not there: mostly they create it."""
LEASE_MS = 60_000
SCOPE = "rivals"
TABLE = KeyValueTableConfiguration(1, 8)
GROUP = ReaderGroupConfiguration(3000, 30000, 3, 0, (), ())
GROUP_ID = "11111111-2222-3333-4444-555555555555"
SEGMENTS = 2
"""Segments of a stream, in each of its epochs."""

ANSWERS: Final[tuple[tuple[type[Exception], str], ...]] = (
    (AlreadyExistsError, "exists"),
    (ScopeNotFoundError, "no scope"),
    (StreamNotFoundError, "missing"),
    (KeyValueTableNotFoundError, "missing"),
    (ReaderGroupNotFoundError, "missing"),
    (TableNotEmptyError, "not empty"),
    (StreamSealedError, "sealed"),
    (StreamNotSealedError, "not sealed"),
    (ScalePreconditionError, "not active"),
    (GenerationMismatchError, "other generation"),
    (InvalidRequestError, "invalid"),
)
"""The answers that are errors."""
NO_ANSWERS = (
    GoneError,
    StoreUnavailableError,
    StoreAnswerError,
    VersionConflictError,
    IllegalStateError,
)
"""After these a client does not know whether what it asked for has happened, or will."""

QUESTIONS = ("exists", "tag", "segments")

Act: TypeAlias = Callable[[Controller], Awaitable[Any]]
Call: TypeAlias = tuple[str, Any, Act]
"""The name of a call in the model, its argument there, and the call."""


@dataclass
class Object:
    """One object, the calls about it, and the model of it."""

    name: str
    first: State
    step: Step
    operations: list[Operation] = field(default_factory=list)

    def check(self) -> bool:
        """Check the answers; return False if there are too many orders to try them all."""
        told = [
            one for one in self.operations if one.answer != UNKNOWN or one.name not in QUESTIONS
        ]
        try:
            order = find_order(told, self.first, self.step)
        except TooManyOrdersError:
            return False
        if order is None:
            calls = "\n".join(map(str, self.operations))
            raise ViolationError(f"no order explains the answers about {self.name}:\n{calls}")
        return True


# ---- Models --------------------------------------------------------------------------------------


def step_scope(state: State, name: str, argument: Any, answer: Any) -> Iterable[State]:
    """Apply a call to a scope with its tables: its state is the set of their names, or None."""
    assert state is None or isinstance(state, frozenset)
    after = state
    match name:
        case "create":
            right = "exists" if state is not None else "ok"
            after = frozenset() if state is None else state
        case "delete":
            right = "no scope" if state is None else "not empty" if state else "ok"
            after = state or None
        case "clear":
            right = "no scope" if state is None else "ok"
            after = None
        case "exists":
            right = state is not None
        case "create table":
            right = "no scope" if state is None else argument not in state
            after = None if state is None else state | {argument}
        case "delete table":
            right = "no scope" if state is None else "ok" if argument in state else "missing"
            after = None if state is None else state - {argument}
        case _:
            raise AssertionError(name)
    return (after,) if answer in (right, UNKNOWN) else ()


@dataclass(frozen=True)
class StreamState:
    """What clients can know of a stream."""

    tag: str
    base: int | None = None
    """The number of its first segment; None until somebody has seen a segment."""
    epoch: int = 0
    head: int = 0
    """The epoch at which it begins."""
    is_sealed: bool = False


def step_stream(state: State, name: str, argument: Any, answer: Any) -> Iterable[State]:
    """Apply a call to a stream that is scaled by replacing all of its segments."""
    assert state is None or isinstance(state, StreamState)
    if name == "create":
        after = StreamState(argument) if state is None else state
        return (after,) if answer in (state is None, UNKNOWN) else ()
    if state is None:
        return (None,) if answer in ("missing", UNKNOWN) else ()
    if name in ("scale", "truncate", "segments"):
        return _step_segments(state, name, argument, answer)
    after: StreamState | None = state
    match name:
        case "update":
            right = "sealed" if state.is_sealed else "ok"
            after = state if state.is_sealed else _changed(state, tag=argument)
        case "tag":
            right = state.tag
        case "seal":
            right, after = "ok", _changed(state, is_sealed=True)
        case "delete":
            right = "ok" if state.is_sealed else "not sealed"
            after = None if state.is_sealed else state
        case _:
            raise AssertionError(name)
    return (after,) if answer in (right, UNKNOWN) else ()


def _step_segments(state: StreamState, name: str, argument: Any, answer: Any) -> Iterable[State]:
    """Apply a call that names the segments of an epoch, by the stream's base and the epoch."""
    if name == "segments":
        if answer in ("sealed", UNKNOWN):
            return (state,) if answer == UNKNOWN or state.is_sealed else ()
        if not isinstance(answer, tuple):
            return ()
        base, epoch = answer
        # A scale is answered when it has begun, and its epoch is active a little later.
        is_possible = state.base in (None, base) and epoch in (state.epoch, state.epoch - 1)
        return (_changed(state, base=base),) if is_possible and not state.is_sealed else ()
    base, epoch = argument
    found: list[State] = []
    if state.is_sealed:
        return (state,) if answer in ("sealed", UNKNOWN) else ()
    if state.base in (None, base):
        bound = _changed(state, base=base)
        if name == "scale":
            is_right, after = epoch == state.epoch, _changed(bound, epoch=epoch + 1)
        else:
            is_right = state.head <= epoch <= state.epoch
            after = _changed(bound, head=epoch)
        refusal = "not active" if name == "scale" else "invalid"
        if answer in ("ok" if is_right else refusal, UNKNOWN):
            found.append(after if is_right else bound)
    if state.base != base and answer in ("not active", "invalid", UNKNOWN):
        # The segments are those of an earlier stream of the name.
        found.append(state)
    return found


def _changed(state: StreamState, **changes: Any) -> StreamState:
    return StreamState(**{**vars(state), **changes})


@dataclass(frozen=True, slots=True)
class Seen:
    """The answer of a creation that also tells what is there then."""

    generation: int


def step_group(state: State, name: str, argument: Any, answer: Any) -> Iterable[State]:
    """Apply a call to a reader group: its state is its generation, or None."""
    assert state is None or isinstance(state, int)
    after: int | None = state
    right: Any
    match name:
        case "create":
            right, after = "ok", 0 if state is None else state
        case "see":
            right = "missing" if state is None else state
        case "update":
            right = "missing" if state is None else "other generation"
            if state == argument:
                right = after = argument + 1
        case "delete":
            right, after = "missing" if state is None else "ok", None
        case _:
            raise AssertionError(name)
    return (after,) if answer in (right, UNKNOWN) else ()


def step_transaction(state: State, name: str, argument: Any, answer: Any) -> Iterable[State]:
    """Apply a call to a transaction, which is open, or ends in one way; its lease may abort it."""
    if name == "lease":
        return ("abort",) if state == "open" else (state,)
    after = name if state == "open" else state
    return (after,) if answer in (after == name, UNKNOWN) else ()


STEPS: Final[dict[str, Step]] = {
    "scope": step_scope,
    "stream": step_stream,
    "group": step_group,
}
PREPARATIONS: Final[dict[tuple[Step, str], Sequence[str]]] = {
    (step_scope, "delete"): ("create",),
    (step_scope, "create table"): ("create",),
    (step_scope, "delete table"): ("create", "create table"),
    (step_stream, "update"): ("create",),
    (step_stream, "scale"): ("create", "segments"),
    (step_stream, "truncate"): ("create", "segments"),
    (step_stream, "delete"): ("create", "seal"),
    (step_group, "update"): ("delete", "create"),
    (step_group, "delete"): ("create",),
}
"""What is asked before, so that a call has something to do."""


# ---- Calls ---------------------------------------------------------------------------------------


class Rivals(Client):
    """Asks for the same, or for what excludes it, through both controllers."""

    async def run(self, count: int) -> None:
        """Do it so often, and then check the answers."""
        await self.ask(_make_scope)
        make = partial(self.ask, _make_stream)
        await make()
        self.objects: list[Object] = []
        self._seen: tuple[int, int] = (0, 0)
        for _ in range(count):
            await self.pause(3)
            kind = self.random.choice(["scope", "scope", "stream", "group", "transaction"])
            if kind == "transaction":
                await self._end_a_transaction()
                continue
            about = self._object_of(kind, is_new=self.random.random() < NEW_SHARE)
            await self._compete(about, partial(getattr(self, f"_calls_of_{kind}"), about.name))

    def _object_of(self, kind: str, *, is_new: bool) -> Object:
        """Return the object of a kind; a new one, too, if a change of the last was not answered.

        Such a change may be made at any time later, which would explain too much.
        """
        known = [one for one in self.objects if one.step is STEPS[kind]]
        if (
            is_new
            or not known
            or any(
                one.answer == UNKNOWN and one.name not in QUESTIONS for one in known[-1].operations
            )
        ):
            known.append(Object(f"{kind}{len(known)}", None, STEPS[kind]))
            self.objects.append(known[-1])
        return known[-1]

    def check(self) -> int:
        """Check all answers; return the number of objects with too many orders."""
        return sum(not one.check() for one in self.objects)

    async def _compete(self, about: Object, calls_of: Callable[[], list[Call]]) -> None:
        """Let some clients ask at nearly the same time, mostly for what can be done then."""
        calls = calls_of()
        drawn = self.random.choice(calls)
        if not about.operations and self.random.random() < 0.7:
            drawn = next(call for call in calls if call[0] == "create")
        elif self.random.random() < 0.7:
            for wanted in PREPARATIONS.get((about.step, drawn[0]), ()):
                first = next(call for call in calls_of() if call[0] == wanted)
                if wanted.endswith("table"):
                    first = (wanted, drawn[1], partial(_make_table, about.name, drawn[1]))
                await self._ask_once(about, *first, 0.0)
            if about.step is step_stream:
                # What was seen meanwhile is an argument of the call.
                drawn = next(call for call in calls_of() if call[0] == drawn[0])
        seconds_max = self.random.choice([*NEAR_SECONDS, FAR_SECONDS])
        sides = self.random.sample(self.sides, 2)
        async with trio.open_nursery() as nursery:
            for number in range(self.random.randint(2, RIVALS_MAX)):
                if number > 1 and self.random.random() < 0.5:
                    drawn = self.random.choice(calls_of())
                seconds = self.random.random() * seconds_max
                nursery.start_soon(
                    partial(self._ask_once, about, *drawn, seconds, side=sides[number % 2])
                )

    async def _ask_once(
        self,
        about: Object,
        name: str,
        argument: Any,
        act: Act,
        seconds: float,
        *,
        side: Side | None = None,
    ) -> Any:
        """Ask a controller once, and note the answer."""
        await trio.sleep(seconds)
        operation = Operation(name, argument, self.ledger.count())
        about.operations.append(operation)
        try:
            answer = await (side or self.random.choice(self.sides)).call(act)
        except NO_ANSWERS:
            return UNKNOWN
        except Exception as error:
            answer = next((text for kind, text in ANSWERS if isinstance(error, kind)), None)
            if answer is None:
                raise
        operation.ended = self.ledger.count()
        if isinstance(answer, Seen):
            # The group may have been updated between its creation and this look at it.
            seen = Operation("see", None, operation.began, operation.ended, answer.generation)
            about.operations.append(seen)
            answer = None
        operation.answer = "ok" if answer is None else answer
        self.ledger.trace(f"{about.name}: {operation}")
        return operation.answer

    # ---- What is asked ---------------------------------------------------------------------------

    def _calls_of_scope(self, name: str) -> list[Call]:
        table = self.random.choice(["t", "u"])
        return [
            ("create", None, lambda c: c.scopes.create(name)),
            ("create", None, lambda c: c.scopes.create(name)),
            ("delete", None, lambda c: c.scopes.delete(name)),
            ("delete", None, lambda c: c.scopes.delete(name)),
            ("exists", None, lambda c: c.scopes.exists(name)),
            ("create table", table, lambda c: c.tables.create(name, table, TABLE)),
            ("delete table", table, lambda c: c.tables.delete(name, table)),
            ("delete table", table, lambda c: c.tables.delete(name, table)),
        ]

    def _calls_of_stream(self, name: str) -> list[Call]:
        tag, seen = f"tag{self.random.randrange(3)}", self._seen
        tagged = structs.replace(fixed_configuration(SEGMENTS), tags=(tag,))
        return [
            ("create", tag, lambda c: c.streams.create(SCOPE, name, tagged)),
            ("update", tag, lambda c: c.streams.update(SCOPE, name, tagged)),
            ("tag", None, partial(_tag_of, name)),
            ("segments", None, partial(self._see_segments, name)),
            ("segments", None, partial(self._see_segments, name)),
            ("scale", seen, partial(_scale, name, seen)),
            ("scale", seen, partial(_scale, name, seen)),
            ("truncate", seen, partial(_truncate, name, seen)),
            ("seal", None, lambda c: c.streams.seal(SCOPE, name)),
            ("delete", None, lambda c: c.streams.delete(SCOPE, name)),
        ]

    async def _see_segments(self, name: str, controller: Controller) -> Any:
        active = await controller.streams.active_segments(SCOPE, name)
        if not active:
            return "sealed"
        self._seen = _place_of(active)
        return self._seen

    def _calls_of_group(self, name: str) -> list[Call]:
        generation = self.random.choice([0, 0, 0, 1, 2])
        return [
            ("create", None, partial(_create_group, name)),
            (
                "update",
                generation,
                lambda c: c.groups.update(SCOPE, name, GROUP_ID, generation, GROUP),
            ),
            ("delete", None, lambda c: c.groups.delete(SCOPE, name, GROUP_ID)),
        ]

    async def _end_a_transaction(self) -> None:
        """Begin a transaction, and let some clients commit and abort it."""
        begun = await self.ask(lambda c: c.transactions.begin(SCOPE, "y", lease_ms=LEASE_MS))
        about = Object(f"transaction {begun.identifier.hex()}", "open", step_transaction)
        about.operations.append(Operation("lease", None, self.ledger.count()))
        self.objects.append(about)

        def calls_of() -> list[Call]:
            return [
                ("abort", None, partial(_abort, begun.identifier)),
                ("commit", None, partial(_commit, begun.identifier)),
            ]

        await self._compete(about, calls_of)


async def _make_scope(controller: Controller) -> None:
    try:
        await controller.scopes.create(SCOPE)
    except AlreadyExistsError:
        return


async def _make_stream(controller: Controller) -> None:
    await controller.streams.create(SCOPE, "y", fixed_configuration(1))


def _place_of(active: Iterable[Segment]) -> tuple[int, int]:
    """Return the number of a stream's first segment, and the epoch of these ones."""
    first = min(active, key=lambda segment: segment.number)
    return first.number - SEGMENTS * first.epoch, first.epoch


def _ids_at(place: tuple[int, int]) -> list[int]:
    base, epoch = place
    first = base + SEGMENTS * epoch
    return [(epoch << 32) + number for number in range(first, first + SEGMENTS)]


async def _tag_of(name: str, controller: Controller) -> str:
    (tag,) = (await controller.streams.configuration(SCOPE, name)).tags
    return tag


async def _scale(name: str, place: tuple[int, int], controller: Controller) -> None:
    halves = [(0.0, 0.5), (0.5, 1.0)]
    await controller.streams.scale(SCOPE, name, _ids_at(place), halves, now_ms=5)


async def _truncate(name: str, place: tuple[int, int], controller: Controller) -> None:
    await controller.streams.truncate(SCOPE, name, dict.fromkeys(_ids_at(place), 0))


async def _create_group(name: str, controller: Controller) -> Seen:
    group = await controller.groups.create(SCOPE, name, GROUP_ID, GROUP)
    return Seen(group.record.generation)


async def _make_table(scope: str, name: str, controller: Controller) -> bool:
    return await controller.tables.create(scope, name, TABLE)


async def _commit(identifier: bytes, controller: Controller) -> bool:
    return await controller.transactions.commit(
        SCOPE, "y", identifier, writer_id="w", writer_ms=None
    )


async def _abort(identifier: bytes, controller: Controller) -> bool:
    return await controller.transactions.abort(SCOPE, "y", identifier)
