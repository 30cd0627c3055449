"""Memory for the cached pages of B+Trees.

Owns: regions of 2 MiB, cut into runs, and these into slots for pages of about one length. An update
replaces many pages by others of about the same length, which go into the same slots.

The slots in the runs of a kind are used, except for the kind's holes and the end of its last run.
The next page of the kind goes into a hole. A page moves only when the cache moves it: while
``has_many_holes``, the cache moves the kind's last page into a hole.

Invariants:
1. The allocated memory is at most proportional to the cached pages, even when the usual length of
   pages changes. Held by ``test_memory_stays_in_proportion_to_the_pages_whatever_their_length``.
2. When a tree is dropped, the regions that its pages used are freed, except for a small reserve.
   Held by ``test_memory_is_given_back_when_a_tree_goes``.

All regions but the first are requested as huge pages: leaves are read in random order, and address
translation of small pages would take longer than the reads.
"""

from libc.stdint cimport int32_t, uint32_t
from libc.stdlib cimport free, realloc
from libc.string cimport memset

from _fast.cache.memory cimport (
    MADV_HUGEPAGE,
    MAP_ANONYMOUS,
    MAP_FAILED,
    MAP_PRIVATE,
    PROT_READ,
    PROT_WRITE,
    madvise,
    mmap,
    munmap,
)

cdef extern from *:
    """
    #define btree_lowest_bit(bits) __builtin_ctz(bits)
    """
    int lowest_bit "btree_lowest_bit"(uint32_t) noexcept nogil

cdef enum:
    RUN_BYTES = 64 << 10
    RUNS_PER_REGION = 32
    # Up to this length, in bytes, slots differ by 64 bytes; longer ones by an eighth at most.
    SMALL_BYTES = 1024
    STEP_BYTES = 64
    STEPS_PER_DOUBLING = 8
    # One of this many slots may be a hole, besides those of one run.
    SLOTS_PER_HOLE = 8


cdef int kind_of(Py_ssize_t length) noexcept nogil:
    """Return the kind of slot for a page of that length, which is 1 to ``LENGTH_MAX``."""
    cdef Py_ssize_t base = SMALL_BYTES
    cdef int kind = SMALL_BYTES // STEP_BYTES
    cdef Py_ssize_t step
    if length <= SMALL_BYTES:
        return <int>((length - 1) // STEP_BYTES)
    while length > 2 * base:
        base *= 2
        kind += STEPS_PER_DOUBLING
    step = base // STEPS_PER_DOUBLING
    return kind + <int>((length - base - 1) // step)


cdef Py_ssize_t slot_bytes_of(int kind) noexcept nogil:
    """Return the length of a kind's slots."""
    cdef int small = SMALL_BYTES // STEP_BYTES
    cdef int doubling
    if kind < small:
        return (kind + 1) * STEP_BYTES
    doubling = (kind - small) // STEPS_PER_DOUBLING
    return (<Py_ssize_t>SMALL_BYTES << doubling) // STEPS_PER_DOUBLING * (
        STEPS_PER_DOUBLING + 1 + (kind - small) % STEPS_PER_DOUBLING
    )


cdef class PageMemory:
    """Allocates slots for pages, one by one."""

    def __cinit__(self):
        cdef int number
        memset(self.kinds, 0, sizeof(self.kinds))
        for number in range(KIND_COUNT):
            self.kinds[number].slot_bytes = slot_bytes_of(number)
            self.kinds[number].slots_per_run = <int32_t>(
                RUN_BYTES // self.kinds[number].slot_bytes
            )

    def __dealloc__(self):
        cdef int number
        for number in range(KIND_COUNT):
            free(self.kinds[number].runs)
            free(self.kinds[number].users)
            free(self.kinds[number].holes)
        while self.region_count:
            self._remove_region(self.region_count - 1)
        free(self._regions)

    cdef unsigned char *allocate(self, Py_ssize_t length, int32_t user, int32_t *slot) noexcept:
        """Return memory for a page of that length, and set its slot; NULL if there is no memory."""
        cdef Kind *kind = self.kinds + kind_of(length)
        cdef unsigned char *page
        if kind.hole_count:
            kind.hole_count -= 1
            slot[0] = kind.holes[kind.hole_count]
        else:
            if kind.slot_count == kind.run_count * kind.slots_per_run and not self._add_run(kind):
                return NULL
            slot[0] = kind.slot_count
            kind.slot_count += 1
        kind.users[slot[0]] = user
        page = self._address(kind, slot[0])
        allow(page, length)
        return page

    cdef void release(self, int number, int32_t slot) noexcept:
        """Free a slot of that kind."""
        cdef Kind *kind = self.kinds + number
        kind.users[slot] = ~kind.hole_count
        kind.holes[kind.hole_count] = slot
        kind.hole_count += 1
        forbid(self._address(kind, slot), kind.slot_bytes)

    cdef bint has_many_holes(self, int number) noexcept:
        """Return whether the kind's pages should move together."""
        cdef Kind *kind = self.kinds + number
        return kind.hole_count > kind.slots_per_run + kind.slot_count // SLOTS_PER_HOLE or (
            kind.hole_count > 0 and kind.hole_count == kind.slot_count
        )

    cdef int32_t last_user(self, int number) noexcept:
        """Return the user of the last slot, or ``NOBODY`` if the slot is a hole."""
        cdef Kind *kind = self.kinds + number
        cdef int32_t user = kind.users[kind.slot_count - 1]
        return user if user >= 0 else NOBODY

    cdef void drop_last(self, int number) noexcept:
        """Remove the last slot of a kind, which is a hole."""
        cdef Kind *kind = self.kinds + number
        cdef int32_t place = ~kind.users[kind.slot_count - 1]
        cdef int32_t moved
        kind.slot_count -= 1
        kind.hole_count -= 1
        if place != kind.hole_count:
            moved = kind.holes[kind.hole_count]
            kind.holes[place] = moved
            kind.users[moved] = ~place
        if kind.slot_count == (kind.run_count - 1) * kind.slots_per_run:
            kind.run_count -= 1
            self._release_run(kind.runs[kind.run_count])

    cdef unsigned char *_address(self, const Kind *kind, int32_t slot) noexcept:
        cdef int32_t run = slot // kind.slots_per_run
        return kind.runs[run] + (slot - run * kind.slots_per_run) * kind.slot_bytes

    cdef bint _add_run(self, Kind *kind) noexcept:
        """Add a run to a kind; return whether there is memory for it."""
        cdef unsigned char *run
        if kind.run_count == kind.run_capacity and not self._reserve_slots(kind):
            return False
        run = self._allocate_run()
        if run == NULL:
            return False
        kind.runs[kind.run_count] = run
        kind.run_count += 1
        return True

    cdef bint _reserve_slots(self, Kind *kind) noexcept:
        """Make room for the records of more runs; return whether there is memory."""
        cdef int32_t capacity = max(2 * kind.run_capacity, 4)
        cdef size_t slots = <size_t>capacity * <size_t>kind.slots_per_run
        runs = <unsigned char **>realloc(kind.runs, <size_t>capacity * sizeof(unsigned char *))
        if runs == NULL:
            return False
        kind.runs = runs
        users = <int32_t *>realloc(kind.users, slots * sizeof(int32_t))
        if users == NULL:
            return False
        kind.users = users
        holes = <int32_t *>realloc(kind.holes, slots * sizeof(int32_t))
        if holes == NULL:
            return False
        kind.holes = holes
        kind.run_capacity = capacity
        return True

    # ---- Runs ----

    cdef unsigned char *_allocate_run(self) noexcept:
        """Return a free run, or NULL if there is no memory."""
        cdef int32_t index = 0
        cdef int run
        if self._unused_count == 0 and not self._add_region():
            return NULL
        for index in range(self.region_count):
            if self._regions[index].unused:
                break
        run = lowest_bit(self._regions[index].unused)
        self._regions[index].unused &= self._regions[index].unused - 1
        self._unused_count -= 1
        return self._regions[index].start + run * RUN_BYTES

    cdef bint _add_region(self) noexcept:
        """Add a region; return whether there is memory for it."""
        cdef size_t length = REGION_BYTES
        cdef size_t before
        if self.region_count == self._region_capacity:
            capacity = max(2 * self._region_capacity, 8)
            regions = <Region *>realloc(self._regions, <size_t>capacity * sizeof(Region))
            if regions == NULL:
                return False
            self._regions = regions
            self._region_capacity = capacity
        # Map twice as much, so that the mapping contains a whole huge page.
        mapped = mmap(
            NULL, 2 * length, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0
        )
        if mapped == MAP_FAILED:
            return False
        start = <unsigned char *>mapped
        before = -<size_t>start & (length - 1)
        if before:
            munmap(start, before)
        munmap(start + before + length, length - before)
        start += before
        if self.region_count:
            madvise(start, length, MADV_HUGEPAGE)
        forbid(start, REGION_BYTES)
        self._regions[self.region_count].start = start
        self._regions[self.region_count].unused = <uint32_t>-1
        self.region_count += 1
        self._unused_count += RUNS_PER_REGION
        return True

    cdef void _release_run(self, unsigned char *run) noexcept:
        cdef unsigned char *start = run - (<size_t>run & (REGION_BYTES - 1))
        cdef int32_t index = 0
        for index in range(self.region_count):
            if self._regions[index].start == start:
                break
        self._regions[index].unused |= <uint32_t>1 << ((run - start) // RUN_BYTES)
        self._unused_count += 1
        if (
            self._regions[index].unused == <uint32_t>-1
            and self._unused_count >= RUNS_PER_REGION + RUNS_PER_REGION // 2
        ):
            self._remove_region(index)
            self._unused_count -= RUNS_PER_REGION

    cdef void _remove_region(self, int32_t index) noexcept:
        allow(self._regions[index].start, REGION_BYTES)
        munmap(self._regions[index].start, REGION_BYTES)
        self.region_count -= 1
        self._regions[index] = self._regions[self.region_count]
