def now_ns() -> int:
    """Return the monotonic time, in nanoseconds, from which ``record_since`` measures."""

class Counter:
    """A number that only grows."""

    value: int
    def add(self, count: int) -> None:
        """Add to the number."""

class Histogram:
    """The number of values of each size, and the sum of all."""

    @property
    def sum(self) -> int: ...
    def record(self, value: int) -> None:
        """Count a value."""

    def record_since(self, start_ns: int) -> None:
        """Count the nanoseconds since a result of ``now_ns``."""

    def counts(self) -> list[tuple[int, int]]:
        """Return the buckets that are not empty: the greatest value of each, and its count."""
