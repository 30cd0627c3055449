from collections import deque
from typing import Any

from _fast.log.data_frame import DataFrame

def accept_appends(
    queue: deque[Any], state: Any, frame: DataFrame, accepted: list[Any], block_bytes_max: int
) -> int:
    """Move appends from the head of ``queue`` into ``frame`` and to the end of ``accepted``.

    ``state`` is the pending state. Stops at the first operation that is no append, that does not
    fit into the frame or that is unusual, and leaves it in the queue untouched. Returns the bytes
    of cache blocks that the appends may need, at most ``block_bytes_max``.
    """

def commit_appends(
    operations: list[Any],
    start: int,
    metadata: Any,
    memory_log: Any,
    read_index: Any,
    pending: Any,
    now_ms: int,
) -> int:
    """Apply and complete the durable appends from ``start`` on.

    Stops before the first operation that is no append and returns its index. Appends to a segment
    take effect together; completions are called in the order of the operations.
    """
