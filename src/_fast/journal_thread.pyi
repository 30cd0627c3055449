from collections.abc import Sequence
from typing import Protocol

from typing_extensions import Buffer

OUTSTANDING_MAX: int
"""Maximum number of batches that may be submitted whose results were not fetched yet."""

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
        """Submit a batch of ``records`` to be written at ``offset``, padded with zeros to
        ``length``.

        The descriptor stays open until the batch is taken. At most ``OUTSTANDING_MAX`` batches are
        submitted and not taken. ``records`` is a list.
        """

    def fetch_results(self) -> list[tuple[int, float]]:
        """Return the batches that have ended since the last call, in order, each as two numbers:
        how many bytes are durable (all, or it failed) or an errno as a negative number, and how
        many seconds the write took."""

    def resume(self) -> None:
        """Write again what is submitted from now on; only when nothing is outstanding."""

    def stop(self) -> None:
        """Write what was submitted and end the thread. Idempotent."""
