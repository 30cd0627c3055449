"""The interface of handlers, and the state that they can use.

Owns: the shape of handler tables, and the state that requests share.

Invariants:
1. A handler returns the reply to its request or raises; errors become replies in one place.
2. ``exclusive`` handlers change what other requests of the same connection about the same segment
   may see: those wait for it, and it for them.
3. A handler keeps nothing: what must outlive it lies in its ``RequestContext``.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any, Final, TypeVar

from pravega_wire import commands as wire
from segstore.api import SegmentContainer
from segstore.errors import InvalidRequestError
from segstore.network.replies import NO_OFFSET, Asked, operation_name
from segstore.process.registry import ContainerRegistry

REMEMBERED_MERGES_MAX: Final = 1_000
SEGMENTS_MAX: Final = 257
"""Maximum number of segments in one request. Official controllers merge at most 100 into one, and
each takes its time."""


@dataclass(slots=True)
class Store:
    """The state that all connections of a process share."""

    registry: ContainerRegistry
    now_ms: Callable[[], int]
    random_bytes: Callable[[int], bytes]
    merges: OrderedDict[str, str] = field(default_factory=OrderedDict)
    """Sources that were merged lately, and their targets: a repeated merge has to succeed."""

    def remember_merge(self, source: str, target: str) -> None:
        """Remember a merge that was done."""
        self.merges[source] = target
        if len(self.merges) > REMEMBERED_MERGES_MAX:
            self.merges.popitem(last=False)


@dataclass(slots=True)
class RequestContext:
    """The state that the requests of one connection share."""

    store: Store
    transient_segments: set[str] = field(default_factory=set)
    """Segments to delete when the connection closes."""

    def container_for(self, segment: str) -> SegmentContainer:
        """Return the container of a segment."""
        return self.store.registry.container_for(segment)


Handle = Callable[[RequestContext, Any], Awaitable[wire.Reply]]
HandleType = TypeVar("HandleType", bound=Handle)


@dataclass(frozen=True, slots=True)
class Handler:
    """The way in which a kind of request is answered.

    ``segments`` are those that it is about; a refusal names the first. They are in memory when
    ``answer`` begins if ``activates`` is set. ``reply_bytes_max`` is how long its reply may become,
    if it may be long: few of those are answered at the same time.
    """

    answer: Handle
    exclusive: bool
    segments: Callable[[Any], tuple[str, ...]]
    offset: Callable[[Any], int]
    reply_bytes_max: Callable[[Any], int] | None = None
    activates: bool = True

    async def handle(self, context: RequestContext, request: Any) -> wire.Reply:
        """Run the handler once the segments' containers are open."""
        segments = self.segments(request)
        if len(segments) > SEGMENTS_MAX:
            raise InvalidRequestError(
                segments[0],
                f"a request about {len(segments)} segments, at most {SEGMENTS_MAX} are served",
            )
        for name in segments:
            if name:
                await context.store.registry.wait_opened(name)
                if self.activates:
                    await context.container_for(name).activate(name)
        return await self.answer(context, request)

    def asked(self, request: Any) -> Asked:
        """Return the parts of ``request`` that a refusal repeats."""
        return Asked(
            request.request_id,
            self.segments(request)[0],
            operation_name(request),
            self.offset(request),
        )


class HandlerTable(dict[type[wire.Command], Handler]):
    """Handlers by the kind of request that they answer."""

    def handles(
        self,
        kind: type[wire.Request],
        *,
        exclusive: bool = False,
        activates: bool = True,
        segments: Callable[[Any], tuple[str, ...]] = lambda request: (request.segment,),
        offset: Callable[[Any], int] = lambda request: NO_OFFSET,
        reply_bytes_max: Callable[[Any], int] | None = None,
    ) -> Callable[[HandleType], HandleType]:
        """Enter the decorated function."""

        def enter(handle: HandleType) -> HandleType:
            assert kind not in self, f"{kind.__name__} has a handler"
            self[kind] = Handler(handle, exclusive, segments, offset, reply_bytes_max, activates)
            return handle

        return enter


def check_name(name: str) -> None:
    """Refuse names that no client makes and that could lead out of a directory in tier 2."""
    parts = name.split("/")
    if "\0" in name or any(part in ("", ".", "..") for part in parts):
        raise InvalidRequestError(name, f"{name!r} is no segment name")
