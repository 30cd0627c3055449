from collections.abc import Sequence

def extend_sums(
    sums: bytes,
    phase: int,
    length: int,
    data: Sequence[bytes | bytearray | memoryview],
    block_bytes: int,
) -> bytes: ...
def find_damage(
    sums: bytes,
    phase: int,
    start: int,
    data: bytes | bytearray | memoryview,
    length: int,
    block_bytes: int,
) -> int: ...
