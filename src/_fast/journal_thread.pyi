from collections.abc import Sequence
from typing import Protocol

from typing_extensions import Buffer

OUTSTANDING_MAX: int
"""How many batches may be submitted and not taken yet."""

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
    """A thread that writes batches. One other thread calls its methods; ``event_fd``, an eventfd,
    is rung whenever a batch is over."""

    def __init__(self, event_fd: int) -> None: ...
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
        """Have a batch of ``records`` written at ``offset``, filled up with zeros to ``length``.

        The descriptor stays open until the batch is taken. At most ``OUTSTANDING_MAX`` batches are
        submitted and not taken. ``records`` is a list.
        """

    def take(self) -> list[tuple[int, float]]:
        """The batches that are over since the last call, in order: for each how many bytes of it
        are durable (all, or it failed) or an errno as a negative number, and for how many seconds
        it was being written."""

    def resume(self) -> None:
        """Write again what is submitted from now on; only when nothing is outstanding."""

    def stop(self) -> None:
        """Write what was submitted and end the thread. Idempotent."""
