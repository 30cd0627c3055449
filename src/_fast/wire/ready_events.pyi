from collections.abc import Awaitable, Callable
from typing import Any, Self, final

from _fast.wire.events import ReadEvent

@final
class ReadyEvents:
    """The events that a reader has ready, and those that the program has: an iterator of
    ``async for``.

    ``ask`` returns the next event as ``__anext__`` does, after waiting for it. It is called when
    none ``has_next``; a reader that blocks has a ``ReadyLoop`` instead. ``clock`` tells the time;
    without it, that is ``time.monotonic``, some milliseconds late.
    """

    due: float
    """The time from which on the reader is asked, which moves it; at first there is none."""
    is_unsure: bool
    """True while the events that are ready may not be those that come next."""

    def __init__(
        self,
        ask: Callable[[], Awaitable[ReadEvent[Any]]] | None = None,
        clock: Callable[[], float] | None = None,
    ) -> None: ...
    def __len__(self) -> int:
        """Return how many events are ready."""

    @property
    def has_next(self) -> bool:
        """Return whether an event is ready that the program may have without asking the reader."""

    def __aiter__(self) -> Self: ...
    def __anext__(self) -> Awaitable[ReadEvent[Any]]: ...
    @property
    def first(self) -> ReadEvent[Any] | None:
        """Return the first event that the program has; None after ``release``."""

    @property
    def last(self) -> ReadEvent[Any] | None:
        """Return the last event that the program has; None after ``release``."""

    @property
    def next(self) -> ReadEvent[Any]:
        """Return the next event, which is given to the program by ``del``. One has to be ready.

        An interrupt can come behind a call, such as ``take``, and then takes away what that
        returned; between these two statements it leaves the event where it is.
        """

    @next.deleter
    def next(self) -> None: ...
    @property
    def rest(self) -> list[ReadEvent[Any]]:
        """Return all events that are ready, which are given to the program by ``del``, as ``next``
        is."""

    @rest.deleter
    def rest(self) -> None: ...
    def take(self) -> ReadEvent[Any]:
        """Give the next event to the program. One has to be ready."""

    def take_all(self) -> list[ReadEvent[Any]]:
        """Give all events that are ready to the program, at least one."""

    def replace(self, events: list[ReadEvent[Any]]) -> None:
        """Replace the events that are ready by these."""

    def release(self) -> None:
        """Note that the program has no event any more."""

@final
class ReadyLoop:
    """A loop over the events of a reader that blocks: an iterator of ``for``.

    ``ask`` returns the next event after waiting for it, or None at the end. It is called when none
    of ``ready`` ``has_next``.
    """

    def __init__(self, ready: ReadyEvents, ask: Callable[[], ReadEvent[Any] | None]) -> None: ...
    def __iter__(self) -> Self: ...
    def __next__(self) -> ReadEvent[Any]: ...
