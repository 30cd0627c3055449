"""Memory for the cached pages of B+Trees, for that cache."""

from libc.stdint cimport int32_t, uint32_t

cdef extern from *:
    """
    #ifdef __SANITIZE_ADDRESS__
    #include <sanitizer/asan_interface.h>
    #define btree_forbid(start, length) ASAN_POISON_MEMORY_REGION(start, length)
    #define btree_allow(start, length) ASAN_UNPOISON_MEMORY_REGION(start, length)
    #else
    #define btree_forbid(start, length) ((void)0)
    #define btree_allow(start, length) ((void)0)
    #endif
    """
    # The address sanitizer reports every access to these bytes.
    void forbid "btree_forbid"(const void *, Py_ssize_t) noexcept nogil
    void allow "btree_allow"(const void *, Py_ssize_t) noexcept nogil

cdef enum:
    # Longer pages have no slots here.
    LENGTH_MAX = 65535
    KIND_COUNT = 64
    NOBODY = -1
    REGION_BYTES = 2 << 20


cdef struct Kind:
    # The slots of one size. They lie in runs, each with the same number of slots. A slot below
    # `slot_count` is used, or it is a hole: a free slot between used ones.
    Py_ssize_t slot_bytes
    int32_t slots_per_run
    int32_t slot_count
    unsigned char **runs
    int32_t run_count
    int32_t run_capacity
    # The user of a slot; for a hole the complement of its index among the holes.
    int32_t *users
    int32_t *holes
    int32_t hole_count


cdef struct Region:
    unsigned char *start
    # One bit for every free run.
    uint32_t unused


cdef int kind_of(Py_ssize_t length) noexcept nogil
cdef Py_ssize_t slot_bytes_of(int kind) noexcept nogil


cdef class PageMemory:
    cdef Kind kinds[KIND_COUNT]
    cdef Region *_regions
    cdef int32_t region_count
    cdef int32_t _region_capacity
    # The sum over all regions.
    cdef int32_t _unused_count

    cdef unsigned char *allocate(self, Py_ssize_t length, int32_t user, int32_t *slot) noexcept
    cdef void release(self, int number, int32_t slot) noexcept
    cdef bint has_many_holes(self, int number) noexcept
    cdef int32_t last_user(self, int number) noexcept
    cdef void drop_last(self, int number) noexcept
    cdef unsigned char *_address(self, const Kind *kind, int32_t slot) noexcept
    cdef bint _add_run(self, Kind *kind) noexcept
    cdef bint _reserve_slots(self, Kind *kind) noexcept
    cdef unsigned char *_allocate_run(self) noexcept
    cdef bint _add_region(self) noexcept
    cdef void _release_run(self, unsigned char *run) noexcept
    cdef void _remove_region(self, int32_t index) noexcept
