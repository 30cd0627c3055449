"""Calls that are refused: whatever happens to them, nobody else notices them.

Owns: ``Refused``, which lets a controller stand still or die at some step of a refused call, and
compares the answers of the other one with those that it would give without the call.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any, Final, TypeAlias

import trio
from msgspec import structs

from controllers.clients import TRIES_MAX, Client, GoneError, Side
from controllers.ledger import ViolationError
from pravega_controller.controller import Controller
from pravega_controller.errors import (
    AlreadyExistsError,
    ControllerError,
    GenerationMismatchError,
    InvalidRequestError,
    NotFoundError,
    ScalePreconditionError,
    ScopeNotFoundError,
    StoreAnswerError,
    StoreUnavailableError,
    StreamNotSealedError,
    StreamSealedError,
    SubscriberNotFoundError,
    TableNotEmptyError,
    VersionConflictError,
)
from pravega_controller.metadata.records import NamedCut, ReaderGroupConfiguration
from pravega_controller.rules.streams import fixed_configuration
from pravega_controller.tables.key_value_tables import KeyValueTableConfiguration
from pravega_controller.transactions.operations import PingAnswer
from pravega_wire.names import InvalidNameError

STEPS_MAX = 10
"""Maximum number of requests of its controller that come before a refused call stands still."""
PAUSE_SECONDS = (0.5, 12.0)
"""Others take a controller for dead after half of the longest pause."""
SCOPE = "full"
TAGGED = structs.replace(fixed_configuration(1), tags=("tag",))
OTHER = structs.replace(fixed_configuration(2), tags=("other",))
TABLE = KeyValueTableConfiguration(1, 8)
CUTS = (NamedCut(SCOPE, "open", {}),)
GROUP = ReaderGroupConfiguration(3000, 30000, 3, 1, CUTS, CUTS)
MISSING_CUTS = (NamedCut(SCOPE, "missing", {}),)
MISSING_GROUP = ReaderGroupConfiguration(3000, 30000, 3, 1, MISSING_CUTS, MISSING_CUTS)
GROUP_ID = "11111111-2222-3333-4444-555555555555"
OTHER_ID = "22222222-2222-3333-4444-555555555555"
UNKNOWN_ID = bytes(15) + b"\1"

NO_ANSWERS = (GoneError, StoreUnavailableError, StoreAnswerError, VersionConflictError)
Act: TypeAlias = Callable[[Controller], Awaitable[Any]]

REFUSED: Final[dict[str, tuple[Act, Any]]] = {
    "createScope": (lambda c: c.scopes.create(SCOPE), AlreadyExistsError),
    "createScope with a bad name": (lambda c: c.scopes.create("a/b"), InvalidNameError),
    "deleteScope": (lambda c: c.scopes.delete(SCOPE), TableNotEmptyError),
    "deleteScope of none": (lambda c: c.scopes.delete("none"), ScopeNotFoundError),
    "deleteScopeRecursive": (lambda c: c.scopes.delete_with_contents("none"), ScopeNotFoundError),
    "createStream": (lambda c: c.streams.create(SCOPE, "open", OTHER), False),
    "createStream in none": (lambda c: c.streams.create("none", "a", OTHER), ScopeNotFoundError),
    "updateStream": (lambda c: c.streams.update(SCOPE, "sealed", OTHER), StreamSealedError),
    "updateStream of none": (lambda c: c.streams.update(SCOPE, "none", OTHER), NotFoundError),
    "truncateStream": (lambda c: c.streams.truncate(SCOPE, "sealed", {0: 0}), StreamSealedError),
    "truncateStream at no cut": (
        lambda c: c.streams.truncate(SCOPE, "open", {7: 0}),
        InvalidRequestError,
    ),
    "scale": (
        lambda c: c.streams.scale(SCOPE, "open", [7], [(0.0, 1.0)], now_ms=5),
        ScalePreconditionError,
    ),
    "scale of a sealed stream": (
        lambda c: c.streams.scale(SCOPE, "sealed", [0], [(0.0, 1.0)], now_ms=5),
        StreamSealedError,
    ),
    "sealStream": (lambda c: c.streams.seal(SCOPE, "none"), NotFoundError),
    "deleteStream": (lambda c: c.streams.delete(SCOPE, "open"), StreamNotSealedError),
    "deleteStream of none": (lambda c: c.streams.delete(SCOPE, "none"), NotFoundError),
    "createKeyValueTable": (lambda c: c.tables.create(SCOPE, "t", TABLE), False),
    "createKeyValueTable in none": (
        lambda c: c.tables.create("none", "t", TABLE),
        ScopeNotFoundError,
    ),
    "deleteKeyValueTable": (lambda c: c.tables.delete(SCOPE, "none"), NotFoundError),
    "createReaderGroup": (
        lambda c: c.groups.create(SCOPE, "h", GROUP_ID, MISSING_GROUP),
        NotFoundError,
    ),
    "createReaderGroup in none": (
        lambda c: c.groups.create("none", "h", GROUP_ID, GROUP),
        ScopeNotFoundError,
    ),
    "updateReaderGroup": (
        lambda c: c.groups.update(SCOPE, "g", GROUP_ID, 7, GROUP),
        GenerationMismatchError,
    ),
    "updateReaderGroup to no stream": (
        lambda c: c.groups.update(SCOPE, "g", GROUP_ID, 0, MISSING_GROUP),
        NotFoundError,
    ),
    "deleteReaderGroup": (lambda c: c.groups.delete(SCOPE, "g", OTHER_ID), NotFoundError),
    "updateSubscriberStreamCut": (
        lambda c: c.groups.release(
            SCOPE,
            "open",
            subscriber=f"{SCOPE}/h",
            group_id=GROUP_ID,
            generation=0,
            cut={0: 0},
        ),
        SubscriberNotFoundError,
    ),
    "createTransaction": (
        lambda c: c.transactions.begin(SCOPE, "sealed", lease_ms=20_000),
        InvalidRequestError,
    ),
    "commitTransaction": (
        lambda c: c.transactions.commit(SCOPE, "open", UNKNOWN_ID, writer_id="w", writer_ms=None),
        False,
    ),
    "abortTransaction": (lambda c: c.transactions.abort(SCOPE, "open", UNKNOWN_ID), False),
    "pingTransaction": (
        lambda c: c.transactions.ping(SCOPE, "open", UNKNOWN_ID, lease_ms=20_000),
        PingAnswer.UNKNOWN,
    ),
    "removeWriter": (lambda c: c.watermarks.remove(SCOPE, "open", "w"), NotFoundError),
}
"""Calls by their names in the interface, and the kind of error, or the answer, of each."""


async def _describe(c: Controller) -> dict[str, Any]:
    """Return the answers to questions about everything that a refused call is about."""
    group = (await c.groups.get(SCOPE, "g")).record
    return {
        "scopes": (await c.scopes.exists(SCOPE), await c.scopes.exists("none")),
        "listed": SCOPE in (await c.store.scopes.list_page("")).names,
        "streams": [await c.streams.exists(SCOPE, name) for name in ("open", "sealed", "none")],
        "tags": (await c.streams.configuration(SCOPE, "open")).tags,
        "tagged": (await c.streams.list_with_tag(SCOPE, "tag", "")).names,
        "active": [s.segment_id for s in await c.streams.active_segments(SCOPE, "open")],
        "sealed": await c.streams.active_segments(SCOPE, "sealed"),
        "head": await c.streams.head(SCOPE, "open"),
        "group": (group.group_id, group.generation, group.configuration),
        "groups": (await c.store.scopes.list_objects(SCOPE, "g", "")).names,
        "subscribers": await c.groups.subscribers(SCOPE, "open"),
        "table": (await c.tables.get(SCOPE, "t")).record.configuration,
        "transaction": await c.transactions.state(SCOPE, "open", UNKNOWN_ID),
    }


EXPECTED: Final[dict[str, Any]] = {
    "scopes": (True, False),
    "listed": True,
    "streams": [True, True, False],
    "tags": ("tag",),
    "tagged": ["open"],
    "active": [0],
    "sealed": (),
    "head": {0: 0},
    "group": (GROUP_ID, 0, GROUP),
    "groups": ["g"],
    "subscribers": [f"{SCOPE}/g"],
    "table": TABLE,
    "transaction": None,
}


class Refused(Client):
    """Makes calls that are refused, while their controller stands still or dies."""

    kill: Callable[[Side], None]

    async def run(self, count: int) -> None:
        """Do it so often."""
        await self.ask(_prepare)
        self._may_be_late: set[str] = set()
        for number in range(count):
            await self.pause(10)
            one, other = self.random.sample(self.sides, 2)
            name = self.random.choice(sorted(REFUSED))
            one.link.cut_at(self.random.randrange(STEPS_MAX))
            self.ledger.trace(f"refused {name} at {one.port}")
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._refuse, one, name)
                nursery.start_soon(self._go_on, one)
                await self._look(other, name)
                await self._use(other, name, f"n{number}")
            # Also after it was refused, or after others have finished what its controller left.
            await self.pause(10)
            await self._look(other, name)

    async def _refuse(self, side: Side, name: str) -> None:
        """Make a call, and check that it is refused if it is answered."""
        act, expected = REFUSED[name]
        try:
            answer = await side.call(act)
        except NO_ANSWERS:
            return
        except (ControllerError, InvalidNameError) as error:
            if not isinstance(expected, type) or not isinstance(error, expected):
                raise ViolationError(f"{name} was refused by {error!r}, not {expected}") from error
            return
        if answer != expected:
            raise ViolationError(f"{name} was answered by {answer}, not {expected}")

    async def _go_on(self, side: Side) -> None:
        await trio.sleep(self.random.uniform(*PAUSE_SECONDS))
        if self.random.random() < 0.4:
            self.kill(side)
        side.link.mend()

    async def _look(self, side: Side, name: str) -> None:
        """Check the answers of one controller to questions.

        A creation without an answer may be carried out at any time later, even after the group that
        a second creation made was deleted.
        """
        found = await self._ask_at(side, _describe)
        for subject in ("groups", "subscribers"):
            late = {name for name in found[subject] if name.split("/")[-1] in self._may_be_late}
            found[subject] = [name for name in found[subject] if name not in late]
        for subject, expected in EXPECTED.items():
            if found[subject] != expected:
                raise ViolationError(
                    f"{subject}: {found[subject]}, and without a refused {name}: {expected}"
                )

    async def _use(self, side: Side, name: str, new: str) -> None:
        """Check that one controller makes and deletes things as ever."""
        try:
            await self._ask_at(side, lambda c: c.tables.create(SCOPE, new, TABLE))
            await self._ask_at(side, lambda c: c.streams.create(SCOPE, new, OTHER))
            await self._ask_at(
                side,
                lambda c: c.groups.create(SCOPE, new, GROUP_ID, GROUP),
                without_answer=lambda: self._may_be_late.add(new),
            )
            await self._ask_at(side, lambda c: c.groups.get(SCOPE, new))
            await self._ask_at(side, lambda c: c.streams.seal(SCOPE, new))
        except NotFoundError as error:
            raise ViolationError(f"during a refused {name}: {error!r}") from error
        for delete in (
            lambda c: c.groups.delete(SCOPE, new, GROUP_ID),
            lambda c: c.tables.delete(SCOPE, new),
            lambda c: c.streams.delete(SCOPE, new),
        ):
            # A call that is repeated may find what the one before has left.
            with suppress(NotFoundError):
                await self._ask_at(side, delete)

    async def _ask_at(
        self, side: Side, act: Act, *, without_answer: Callable[[], None] = lambda: None
    ) -> Any:
        """Return the answer of one controller, or of the next one at its place.

        Calls ``without_answer`` for each call that got none.
        """
        for _ in range(TRIES_MAX):
            try:
                return await side.call(act)
            except NO_ANSWERS:
                without_answer()
                await trio.sleep(self.random.random() * 2)
        raise AssertionError("the controller has not answered")


async def _prepare(c: Controller) -> None:
    """Make everything; this may have been begun before."""
    with suppress(AlreadyExistsError):
        await c.scopes.create(SCOPE)
    await c.streams.create(SCOPE, "open", TAGGED)
    await c.streams.create(SCOPE, "sealed", fixed_configuration(1))
    await c.streams.seal(SCOPE, "sealed")
    await c.tables.create(SCOPE, "t", TABLE)
    await c.groups.create(SCOPE, "g", GROUP_ID, GROUP)
