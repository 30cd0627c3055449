class LentMemory:
    """Blocks of ``block_bytes`` of memory, aligned to pages; up to ``free_max`` are kept free."""

    block_bytes: int
    free_max: int
    free_count: int
    """Number of blocks that can be lent again."""
    lent_count: int
    """Number of blocks that have views."""

    def __init__(self, *, block_bytes: int, free_max: int) -> None: ...
    def lend(self) -> memoryview:
        """Return a block as a writable view; it comes back when all views of it are gone.

        Its bytes are those that its last user left. Raises ``MemoryError``.
        """
    def drop_one(self) -> bool:
        """Return a free block to the system; return whether there was one."""
