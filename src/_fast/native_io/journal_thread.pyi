from collections.abc import Sequence
from typing import Protocol

from typing_extensions import Buffer

OUTSTANDING_MAX: int
"""Maximum number of submitted batches whose results were not fetched yet."""

class _Record(Protocol):
    @property
    def kind(self) -> int: ...
    @property
    def container_id(self) -> int: ...
    @property
    def epoch(self) -> int: ...
    @property
    def position(self) -> int: ...
    @property
    def length(self) -> int: ...
    @property
    def parts(self) -> Sequence[Buffer]: ...

class JournalThread:
    """A thread that writes batches. One other thread calls its methods.

    The thread signals ``event_fd``, an eventfd, whenever a batch is finished. It begins to write a
    batch ``interval_seconds_min`` after the one before, or later.
    """

    def __init__(self, event_fd: int, interval_seconds_min: float = 0.0) -> None: ...
    def submit(
        self,
        records: Sequence[_Record],
        *,
        descriptor: int,
        offset: int,
        length: int,
        generation: int,
        salt: int,
        number: int,
        durable_number: int,
    ) -> None:
        """Queue a batch of ``records`` to be written at ``offset``, padded with zeros to
        ``length``.

        The descriptor stays open until the batch's result is fetched. At most ``OUTSTANDING_MAX``
        batches are submitted and not fetched. ``records`` is a list.
        """

    def fetch_results(self) -> list[int]:
        """Remove and return the batches that ended since the last call, in order.

        Each is the number of its durable bytes (all, or it failed) or an errno as a negative
        number.
        """

    def resume(self) -> None:
        """Write later batches again after a failure; only when nothing is outstanding."""

    def stop(self) -> None:
        """Write all submitted batches and end the thread. Idempotent."""
