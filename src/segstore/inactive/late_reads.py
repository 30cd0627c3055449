"""Reads of inactive segments.

Owns: ``LateReads``. A late read waits until its segment is active, and then reads.

Invariants:
1. When the container stops, a read that waits for its segment is completed, once, with an empty
   result. Held by ``test_a_read_that_waits_for_its_segment_is_answered_at_the_stop``.
2. A cancelled read is not completed. Held by
   ``test_a_cancelled_read_of_an_inactive_segment_is_not_answered``.
"""

from __future__ import annotations

from collections.abc import Callable

import trio

from segstore.api import HasRoom, OnRead, ReadHandle, ReadResult, ask_again
from segstore.errors import ContainerOfflineError, SegmentStoreError
from segstore.inactive.activation import Activation

ReadNow = Callable[..., ReadHandle | None]


class LateRead:
    """A read that waits first until its segment is active, and then for its data."""

    __slots__ = ("_inner", "_on_complete", "has_room")

    def __init__(self, on_complete: OnRead, has_room: HasRoom | None) -> None:
        self._on_complete: OnRead | None = on_complete
        self.has_room = has_room
        self._inner: ReadHandle | None = None

    @property
    def is_wanted(self) -> bool:
        """Return whether the read is neither completed nor cancelled."""
        return self._on_complete is not None

    def cancel(self) -> None:
        """Cancel the read: ``on_complete`` is not called."""
        self._on_complete = None
        if self._inner is not None:
            self._inner.cancel()

    def begin(self, inner: ReadHandle | None) -> None:
        """Continue as the read ``inner``; None means that it was completed at once."""
        self._inner = inner

    def complete(self, error: SegmentStoreError | None, result: ReadResult | None) -> None:
        """Complete the read, unless it was cancelled."""
        on_complete, self._on_complete = self._on_complete, None
        if on_complete is not None:
            on_complete(error, result)


class LateReads:
    """The late reads of one container. ``read_now`` is called when the segment is active, or does
    not exist. If the segment became inactive again meanwhile, ``read_now`` begins another late
    read.
    """

    def __init__(self, activation: Activation, read_now: ReadNow) -> None:
        self._activation = activation
        self._read_now = read_now
        self._nursery: trio.Nursery | None = None

    def start(self, nursery: trio.Nursery) -> None:
        """Run reads in ``nursery`` from now on."""
        self._nursery = nursery

    def close(self) -> None:
        """Stop with the container: later reads complete with an empty result, which tells readers
        to ask again."""
        self._nursery = None

    def read(
        self,
        name: str,
        offset: int,
        length_max: int,
        on_complete: OnRead,
        has_room: HasRoom | None,
    ) -> ReadHandle | None:
        """Activate the segment, then read. Return the handle of the read; None if it is
        completed."""
        if self._nursery is None:
            on_complete(None, ask_again(offset))
            return None
        read = LateRead(on_complete, has_room)
        self._nursery.start_soon(self._run, name, offset, length_max, read)
        return read

    async def _run(self, name: str, offset: int, length_max: int, read: LateRead) -> None:
        try:
            try:
                await self._activation.activate(name)
            except ContainerOfflineError:
                read.complete(None, ask_again(offset))
            except SegmentStoreError as error:
                read.complete(error, None)
            if read.is_wanted and read.has_room is not None and not read.has_room():
                read.complete(None, ask_again(offset))
            if read.is_wanted:
                read.begin(
                    self._read_now(
                        name,
                        offset=offset,
                        length_max=length_max,
                        on_complete=read.complete,
                        has_room=read.has_room,
                    )
                )
        except trio.Cancelled:
            # The container stops: tell the reader to ask again.
            read.complete(None, ask_again(offset))
            raise
