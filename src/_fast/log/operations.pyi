from collections.abc import Callable, Sequence
from typing import Any, ClassVar

from typing_extensions import Buffer

from _fast.log.data_frame import DataFrame

class OperationDamagedError(ValueError):
    """Bytes that are no operation."""

def ignore(error: Exception | None, number: int) -> None:
    """Do nothing: the completion of operations for which no task waits."""

class Operation:
    """One change of a container. ``segment_id`` is -1 until the processor resolves the name."""

    operation_type: ClassVar[int]
    name: str
    on_complete: Callable[[Any, int], None]
    segment_id: int
    sequence_number: int

    def __init__(self, name: str, on_complete: Callable[[Any, int], None] = ...) -> None: ...
    @property
    def payload_bytes(self) -> int:
        """Return the number of bytes of user data that the operation carries into the cache."""

    def encode(self) -> tuple[bytes, bytes | bytearray | memoryview]:
        """Return the operation's bytes as a head and a body that need not be copied."""

    def put_into(self, frame: DataFrame) -> bool:
        """Write the operation into ``frame``; return False when it does not fit as a whole."""

class AppendOperation(Operation):
    """Bytes appended to a segment, atomically with attribute updates. Completes with the length."""

    data: bytes | bytearray | memoryview
    length: int
    updates: Sequence[Any]
    expected_offset: int | None
    offset: int
    attribute_values: dict[bytes, int]

    def __init__(
        self,
        name: str,
        data: bytes | bytearray | memoryview,
        *,
        updates: Sequence[Any] = (),
        expected_offset: int | None = None,
        on_complete: Callable[[Any, int], None] = ...,
    ) -> None: ...

def encode_attributes(values: dict[bytes, int]) -> bytes:
    """Encode ``values`` as (id length, id, value) each; the count is stored by the caller."""

def decode_attributes(data: Buffer, position: int, count: int) -> tuple[dict[bytes, int], int]:
    """Decode ``count`` attributes at ``position``; return them and the position after them.

    Raises ``OperationDamagedError``.
    """

def decode_append(record: Buffer) -> AppendOperation:
    """Read one append back; long data is a view of ``record``. Raises ``OperationDamagedError``."""
