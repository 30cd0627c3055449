"""Reserves and allocates the streaming cache's memory, in C.

Owns: one reservation, cut into buffers, and the allocation of memory for them.

`memory_begin` allocates memory for buffers in ascending order: huge pages where the kernel supplies
them cheaply, otherwise small pages in steps. It changes no byte, even while others write to the
same memory.

Invariants:
1. A reservation uses address space and no memory. Held by
   ``test_an_unused_cache_is_only_a_reservation``.
2. Every buffer starts at a 2 MiB boundary and is marked for huge pages. Held by
   ``test_buffers_begin_where_huge_pages_can_and_ask_for_them``.

A huge page is one wait for 512 blocks, and makes address translation quicker. But a virtual machine
may have returned its large free pages to its host, which gives them back one by one: then a huge
page takes twenty times as long, and small pages, most of which were in use before, do not. The
kernel's own thread makes such buffers huge later.
"""

from libc.stdint cimport uint32_t, uint64_t

cdef extern from "sys/mman.h" nogil:
    void *mmap(void *, size_t, int, int, int, long)
    int munmap(void *, size_t)
    int madvise(void *, size_t, int)
    int PROT_READ, PROT_WRITE, MAP_PRIVATE, MAP_ANONYMOUS, MAP_NORESERVE, MADV_HUGEPAGE
    void *MAP_FAILED

cdef extern from *:
    """
    #include <stddef.h>
    #include <stdint.h>
    #include <sys/mman.h>
    #include <time.h>

    #ifndef MADV_POPULATE_WRITE
    #define MADV_POPULATE_WRITE 23
    #endif

    /* Back these pages with memory, without changing their content. */
    static void fault_in(unsigned char *start, size_t length) {
        if (length == 0 || madvise(start, length, MADV_POPULATE_WRITE) == 0)
            return;
        for (size_t done = 0; done < length; done += 4096)
            (void)__sync_bool_compare_and_swap(start + done, 0, 0);
    }

    static uint64_t thread_nanoseconds(void) {
        struct timespec now;
        clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
        return (uint64_t)now.tv_sec * 1000000000 + (uint64_t)now.tv_nsec;
    }
    """
    void fault_in(unsigned char *start, size_t length) noexcept nogil
    uint64_t thread_nanoseconds() noexcept nogil

cdef enum:
    BUFFER_BYTES = 2097152
    PAGE_BYTES = 4096
    # Number of small pages that are requested at once.
    STEP_BYTES = 65536
    # Minimum time in which a huge page is filled with zeros; a quicker one was a small page.
    HUGE_NANOSECONDS_MIN = 20000
    # Maximum time for a huge page, unless its memory must still be found.
    HUGE_NANOSECONDS_MAX = 1000000
    # Number of buffers that get small pages after a failure, before the next try of a huge page.
    SMALL_BUFFERS = 64


cdef struct Memory:
    unsigned char *reservation
    size_t reservation_bytes
    # The first buffer, at a multiple of the buffers' length.
    unsigned char *start
    # Buffers 0..begun_count - 1 have memory, the last one of them up to `ready_bytes`.
    uint32_t begun_count
    size_t ready_bytes
    # The number of next buffers that get small pages.
    uint32_t small_left


cdef inline int memory_open(Memory *memory, uint32_t buffer_count) noexcept nogil:
    """Reserve address space for this many buffers; return -1 when there is none."""
    # One buffer more, so that the first can begin at a boundary of huge pages.
    cdef size_t length = (<size_t>buffer_count + 1) * BUFFER_BYTES
    cdef void *reservation = mmap(
        NULL, length, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0
    )
    if reservation == MAP_FAILED:
        return -1
    memory.reservation = <unsigned char *>reservation
    memory.reservation_bytes = length
    memory.start = <unsigned char *>(
        (<size_t>reservation + BUFFER_BYTES - 1) & ~(<size_t>BUFFER_BYTES - 1)
    )
    return 0


cdef inline void memory_close(Memory *memory) noexcept nogil:
    if memory.reservation != NULL:
        munmap(memory.reservation, memory.reservation_bytes)
        memory.reservation = NULL


cdef inline unsigned char *buffer_at(const Memory *memory, uint32_t buffer) noexcept nogil:
    return memory.start + <size_t>buffer * BUFFER_BYTES


cdef inline void memory_begin(Memory *memory, uint32_t buffer) noexcept nogil:
    """Begin the next buffer, which will be used now; all earlier ones have begun."""
    cdef unsigned char *start = buffer_at(memory, buffer)
    cdef bint huge = memory.small_left == 0
    cdef uint64_t nanoseconds
    if huge:
        madvise(start, BUFFER_BYTES, MADV_HUGEPAGE)
    nanoseconds = thread_nanoseconds()
    fault_in(start, PAGE_BYTES)
    nanoseconds = thread_nanoseconds() - nanoseconds
    if not huge:
        memory.small_left -= 1
    elif not HUGE_NANOSECONDS_MIN <= nanoseconds <= HUGE_NANOSECONDS_MAX:
        memory.small_left = SMALL_BUFFERS
    huge = huge and nanoseconds >= HUGE_NANOSECONDS_MIN
    memory.ready_bytes = BUFFER_BYTES if huge else PAGE_BYTES
    memory.begun_count = buffer + 1


cdef inline void memory_reach(Memory *memory, uint32_t buffer, size_t end) noexcept nogil:
    """Prepare the first ``end`` bytes of a begun buffer, which will be used now."""
    cdef unsigned char *start = buffer_at(memory, buffer)
    cdef size_t ready = memory.ready_bytes
    if end <= ready or buffer + 1 != memory.begun_count:
        return
    end = min(max(end, ready + STEP_BYTES), <size_t>BUFFER_BYTES)
    fault_in(start + ready, end - ready)
    if end == BUFFER_BYTES:
        # The kernel makes the small pages one huge page later, and no caller waits for this.
        madvise(start, BUFFER_BYTES, MADV_HUGEPAGE)
    memory.ready_bytes = end
