"""Lends memory, which becomes free again when its last view is released.

Owns: blocks of memory of one length, aligned to pages, and the list of free ones.

A free block keeps its pages until it is dropped, so that the kernel need not allocate them again.

Invariants:
1. Two loans never share memory. Held by ``test_no_two_loans_share_memory``.
2. A block becomes free when the last view of its loan is released. Held by
   ``test_a_block_comes_back_when_its_last_view_has_gone``. Any thread may release it. Held by
   ``test_loans_may_end_in_any_thread``.
3. The block that was returned last is lent first, because the processor's caches may still have it.
   Held by ``test_the_block_that_came_back_last_is_lent_first``. At most ``free_max`` blocks stay
   free. Held by ``test_no_two_loans_share_memory``.
"""

cimport cython
from cpython.buffer cimport PyBuffer_FillInfo
from libc.stdlib cimport free, malloc
from posix.mman cimport MAP_ANONYMOUS, MAP_FAILED, MAP_PRIVATE, PROT_READ, PROT_WRITE, mmap, munmap


@cython.final
@cython.no_gc_clear  # loans that go away later still need it
cdef class LentMemory:
    """See lent_memory.pyi."""

    cdef readonly Py_ssize_t block_bytes
    cdef readonly Py_ssize_t free_max
    cdef readonly Py_ssize_t free_count
    cdef readonly Py_ssize_t lent_count
    cdef void **_free

    def __cinit__(self, *, Py_ssize_t block_bytes, Py_ssize_t free_max):
        if block_bytes < 1 or free_max < 0:
            raise ValueError(f"{free_max} free blocks of {block_bytes} bytes cannot be kept")
        self.block_bytes = block_bytes
        self.free_max = free_max
        self._free = <void **>malloc(<size_t>(free_max + 1) * sizeof(void *))
        if self._free == NULL:
            raise MemoryError("no memory for a list of free blocks")

    def __dealloc__(self):
        while self.free_count > 0:
            self.free_count -= 1
            munmap(self._free[self.free_count], <size_t>self.block_bytes)
        free(self._free)

    def lend(self):
        """Return a block as a writable view; it comes back when all views of it are gone."""
        cdef Loan loan = Loan.__new__(Loan)
        if self.free_count > 0:
            self.free_count -= 1
            loan._start = self._free[self.free_count]
        else:
            loan._start = mmap(
                NULL, <size_t>self.block_bytes, PROT_READ | PROT_WRITE,
                MAP_PRIVATE | MAP_ANONYMOUS, -1, 0,
            )
            if loan._start == MAP_FAILED:
                loan._start = NULL
                raise MemoryError(f"no memory for a block of {self.block_bytes} bytes")
        loan._owner = self
        self.lent_count += 1
        return memoryview(loan)

    def drop_one(self):
        """Return a free block to the system; return whether there was one."""
        if self.free_count == 0:
            return False
        self.free_count -= 1
        munmap(self._free[self.free_count], <size_t>self.block_bytes)
        return True

    cdef void _release(self, void *start) noexcept:
        self.lent_count -= 1
        if self.free_count < self.free_max:
            self._free[self.free_count] = start
            self.free_count += 1
        else:
            munmap(start, <size_t>self.block_bytes)


@cython.final
@cython.no_gc_clear
cdef class Loan:
    """One block while it is lent."""

    cdef LentMemory _owner
    cdef void *_start

    def __getbuffer__(self, Py_buffer *view, int flags):
        PyBuffer_FillInfo(view, self, self._start, self._owner.block_bytes, 0, flags)

    def __dealloc__(self):
        if self._owner is not None:
            self._owner._release(self._start)
