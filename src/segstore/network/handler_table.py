"""The interface of request handlers, and the state that they use.

Owns: ``Handler`` and ``HandlerTable``, and the state that requests share. A handler keeps no state
of its own: what must outlive a request is in its ``RequestContext``.

Invariants:
1. When a handler raises an error of the segment store, the peer gets the reply that ``replies`` has
   for it. Held by ``test_requests_about_a_missing_segment``.
2. While an ``exclusive`` handler runs, other requests of the connection about its segments wait,
   and it waits for earlier ones: they could see what it changes. Held by
   ``test_append_seal_and_info_in_one_packet``.
3. While it is unknown whether another store owns a container by now, a reply or refusal is returned
   only after the container has confirmed its answer. Held by
   ``test_an_owner_in_doubt_answers_when_it_is_confirmed``.
4. When a name could lead out of a directory in tier 2, no segment of that name is created. Held by
   ``test_names_that_lead_nowhere_good_are_refused``.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, Final, TypeVar

from pravega_metrics.metrics import Family
from pravega_security.delegation_tokens import TokenVerifier
from pravega_security.resources import Level
from pravega_wire import commands as wire
from segstore.api import SegmentContainer
from segstore.errors import InvalidRequestError, SegmentError
from segstore.network.replies import NO_OFFSET, Asked, operation_name
from segstore.process.registry import ContainerRegistry

REMEMBERED_MERGES_MAX: Final = 1_000
SEGMENTS_MAX: Final = 257
"""Maximum number of segments in one request, because each of them takes time. Official controllers
merge at most 100 segments at once."""


@dataclass(slots=True)
class Store:
    """The state that all connections of a process share."""

    registry: ContainerRegistry
    now_ms: Callable[[], int]
    random_bytes: Callable[[int], bytes]
    read_metrics: Callable[[], Awaitable[list[Family]]]
    """Returns what the store measures of itself."""
    merges: OrderedDict[str, str] = field(default_factory=OrderedDict)
    """Sources that were merged recently, and their targets, so that a repeated merge succeeds."""
    tokens: TokenVerifier | None = None
    """Verifies the tokens of requests; None while authorization is off."""

    def remember_merge(self, source: str, target: str) -> None:
        """Remember a successful merge."""
        self.merges[source] = target
        if len(self.merges) > REMEMBERED_MERGES_MAX:
            self.merges.popitem(last=False)


@dataclass(slots=True)
class RequestContext:
    """The state that the requests of one connection share."""

    store: Store
    set_up_append: Callable[[wire.SetupAppend], Awaitable[wire.Reply]] | None = None
    """Prepares the connection for the appends of a writer."""
    transient_segments: set[str] = field(default_factory=set)
    """Segments to delete when the connection closes."""

    def container_for(self, segment: str) -> SegmentContainer:
        """Return the container of a segment."""
        return self.store.registry.container_for(segment)


Handle = Callable[[RequestContext, Any], Awaitable[wire.Reply]]
HandleType = TypeVar("HandleType", bound=Handle)


@dataclass(frozen=True, slots=True)
class Handler:
    """The declaration of how one kind of request is answered.

    ``level`` is what the request's token must allow on each of its segments; with ``Level.NONE``
    the request needs no token. ``segments`` returns the segments that the request is about; a
    refusal names the first one. With ``activates``, they are in memory when ``answer`` begins.
    ``reply_bytes_max`` returns the maximum length of a reply that may be long; few such replies are
    made at the same time.
    """

    answer: Handle
    level: Level
    exclusive: bool
    segments: Callable[[Any], tuple[str, ...]]
    offset: Callable[[Any], int]
    reply_bytes_max: Callable[[Any], int] | None = None
    activates: bool = True

    async def handle(self, context: RequestContext, request: Any) -> wire.Reply:
        """Run the handler when the containers of the segments are open.

        A reply or refusal is returned only when no other owner of a container can have given
        another one.
        """
        segments = self.segments(request)
        if len(segments) > SEGMENTS_MAX:
            raise InvalidRequestError(
                segments[0],
                f"a request about {len(segments)} segments, at most {SEGMENTS_MAX} are served",
            )
        containers: list[SegmentContainer] = []
        for name in segments:
            if name:
                await context.store.registry.wait_opened(name)
                container = context.container_for(name)
                containers.append(container)
                if self.activates:
                    await container.activate(name)
        try:
            reply = await self.answer(context, request)
        except SegmentError:
            await _confirm(containers)
            raise
        await _confirm(containers)
        return reply

    def asked(self, request: Any) -> Asked:
        """Return the parts of ``request`` that a refusal repeats."""
        return Asked(
            request.request_id,
            self.segments(request)[0],
            operation_name(request),
            self.offset(request),
        )


async def _confirm(containers: Iterable[SegmentContainer]) -> None:
    """Wait until the answers of these containers may be sent."""
    for container in containers:
        if not container.may_answer:
            await container.confirm_answer()


class HandlerTable(dict[type[wire.Command], Handler]):
    """Handlers by the kind of request that they answer."""

    def handles(
        self,
        kind: type[wire.Request],
        *,
        level: Level,
        exclusive: bool = False,
        activates: bool = True,
        segments: Callable[[Any], tuple[str, ...]] = lambda request: (request.segment,),
        offset: Callable[[Any], int] = lambda request: NO_OFFSET,
        reply_bytes_max: Callable[[Any], int] | None = None,
    ) -> Callable[[HandleType], HandleType]:
        """Add the decorated function to the table."""

        def enter(handle: HandleType) -> HandleType:
            assert kind not in self, f"{kind.__name__} has a handler"
            self[kind] = Handler(
                handle, level, exclusive, segments, offset, reply_bytes_max, activates
            )
            return handle

        return enter


def check_name(name: str) -> None:
    """Refuse a name that could lead out of a directory in tier 2. No client makes such names."""
    parts = name.split("/")
    if "\0" in name or any(part in ("", ".", "..") for part in parts):
        raise InvalidRequestError(name, f"{name!r} is no segment name")
