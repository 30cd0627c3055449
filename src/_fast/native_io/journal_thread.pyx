"""A thread that writes the journal's batches and never takes the interpreter's lock.

Owns: ``JournalThread``, its queue of batches, and the memory in which it lays them out.
docs/formats/journal.md has the format.

Invariants:
1. Batches are written one at a time, in the order of ``submit``. Held by
   ``test_batches_are_over_in_the_order_in_which_they_were_submitted``. After a batch that was not
   written completely, no later batch is written until ``resume`` is called. Held by
   ``test_after_a_batch_that_was_not_written_none_is_until_it_resumes``.
2. The buffers of a batch cannot be resized or freed from ``submit`` until ``fetch_results`` has
   returned the batch. Held by ``test_what_is_written_is_held_until_it_is_taken``.
3. The thread writes even while another thread keeps the interpreter lock. Held by
   ``test_it_writes_while_nobody_lets_go_of_the_interpreters_lock``. Therefore it uses no Python
   object: ``submit`` copies or pins what the thread needs.
"""

from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
from cpython.mem cimport PyMem_RawFree, PyMem_RawRealloc
from libc.errno cimport EINTR, errno
from libc.stdint cimport uint16_t, uint32_t, uint64_t
from libc.stdlib cimport free
from libc.string cimport memcpy, memset
from posix.types cimport off_t
from posix.unistd cimport write

from _fast.crc cimport crc32c_of

cdef extern from "<pthread.h>" nogil:
    ctypedef unsigned long pthread_t
    ctypedef struct pthread_mutex_t:
        pass
    ctypedef struct pthread_cond_t:
        pass
    int pthread_create(pthread_t *, const void *, void *(*)(void *) noexcept nogil, void *)
    int pthread_join(pthread_t, void **)
    int pthread_setname_np(pthread_t, const char *)
    int pthread_mutex_init(pthread_mutex_t *, const void *)
    int pthread_mutex_destroy(pthread_mutex_t *)
    int pthread_mutex_lock(pthread_mutex_t *)
    int pthread_mutex_unlock(pthread_mutex_t *)
    int pthread_cond_init(pthread_cond_t *, const void *)
    int pthread_cond_destroy(pthread_cond_t *)
    int pthread_cond_wait(pthread_cond_t *, pthread_mutex_t *)
    int pthread_cond_signal(pthread_cond_t *)

cdef extern from "<signal.h>" nogil:
    ctypedef struct sigset_t:
        pass
    enum:
        SIG_SETMASK
    int sigfillset(sigset_t *)
    int pthread_sigmask(int, const sigset_t *, sigset_t *)

cdef extern from "<time.h>" nogil:
    ctypedef long time_t
    struct timespec:
        time_t tv_sec
        long tv_nsec
    enum:
        CLOCK_MONOTONIC
        TIMER_ABSTIME
    int clock_gettime(int, timespec *)
    int clock_nanosleep(int, int, const timespec *, timespec *)

cdef extern from "<sys/prctl.h>" nogil:
    enum:
        PR_SET_TIMERSLACK
    int prctl(int, unsigned long)

cdef extern from "<stdlib.h>" nogil:
    int posix_memalign(void **, size_t, size_t)

cdef extern from "<sys/uio.h>" nogil:
    struct iovec:
        void *iov_base
        size_t iov_len
    enum:
        RWF_DSYNC
    ssize_t pwritev2(int, const iovec *, int, off_t, int)

cdef enum:
    BATCH_MAGIC = 0x424A4753
    BATCH_HEADER_BYTES = 40
    RECORD_HEADER_BYTES = 32
    RECORD_ALIGNMENT = 8
    MEMORY_ALIGNMENT = 4096
    MEMORY_BYTES = 65536
    SLOTS = 2

OUTSTANDING_MAX = SLOTS
"""Maximum number of submitted batches whose results were not fetched yet."""

cdef struct Entry:
    uint64_t epoch
    uint64_t position
    uint32_t length
    uint32_t container_id
    uint32_t part_count
    uint16_t kind


cdef struct Job:
    uint64_t offset
    uint64_t generation
    uint64_t number
    uint64_t durable_number
    Py_buffer *parts
    Py_ssize_t part_count
    Py_ssize_t part_capacity
    Entry *entries
    Py_ssize_t entry_count
    Py_ssize_t entry_capacity
    size_t length
    ssize_t result
    uint32_t salt
    int descriptor


cdef struct Shared:
    # Used by both threads, under the lock: the numbers of submitted and of finished batches.
    pthread_mutex_t lock
    pthread_cond_t changed
    uint64_t submitted
    uint64_t over
    bint blocked
    bint stopping
    # A job belongs to the thread from its submission until it is finished.
    Job jobs[SLOTS]
    int event_fd
    uint64_t interval_nanoseconds
    # Used by the thread alone.
    unsigned char *memory
    size_t capacity


cdef inline void store16(unsigned char *data, uint16_t value) noexcept nogil:
    data[0] = <unsigned char>value
    data[1] = <unsigned char>(value >> 8)


cdef inline void store32(unsigned char *data, uint32_t value) noexcept nogil:
    store16(data, <uint16_t>value)
    store16(data + 2, <uint16_t>(value >> 16))


cdef inline void store64(unsigned char *data, uint64_t value) noexcept nogil:
    store32(data, <uint32_t>value)
    store32(data + 4, <uint32_t>(value >> 32))


cdef inline size_t stored_bytes(uint32_t length) noexcept nogil:
    cdef size_t whole = RECORD_HEADER_BYTES + <size_t>length
    return (whole + RECORD_ALIGNMENT - 1) & ~(<size_t>RECORD_ALIGNMENT - 1)


cdef size_t batch_bytes(const Job *job) noexcept nogil:
    cdef size_t length = BATCH_HEADER_BYTES
    cdef Py_ssize_t index
    for index in range(job.entry_count):
        length += stored_bytes(job.entries[index].length)
    return length


cdef void lay_out(const Job *job, unsigned char *memory) noexcept nogil:
    """Write the batch into ``memory``, and zeros after it up to ``job.length``."""
    cdef unsigned char *head = memory + BATCH_HEADER_BYTES
    cdef unsigned char *place
    cdef const Entry *entry
    cdef Py_ssize_t index
    cdef Py_ssize_t part = 0
    cdef uint32_t _
    cdef size_t stored, filled
    for index in range(job.entry_count):
        entry = &job.entries[index]
        store32(head + 4, entry.length)
        store32(head + 8, entry.container_id)
        store16(head + 12, entry.kind)
        store16(head + 14, 0)
        store64(head + 16, entry.epoch)
        store64(head + 24, entry.position)
        place = head + RECORD_HEADER_BYTES
        for _ in range(entry.part_count):
            memcpy(place, job.parts[part].buf, <size_t>job.parts[part].len)
            place += job.parts[part].len
            part += 1
        store32(
            head,
            crc32c_of(head + 4, RECORD_HEADER_BYTES - 4 + <size_t>entry.length, job.salt),
        )
        stored = stored_bytes(entry.length)
        filled = RECORD_HEADER_BYTES + <size_t>entry.length
        memset(head + filled, 0, stored - filled)
        head += stored
    memset(head, 0, job.length - <size_t>(head - memory))
    store32(memory, BATCH_MAGIC)
    store64(memory + 4, job.generation)
    store64(memory + 12, job.number)
    store64(memory + 20, job.durable_number)
    store32(memory + 28, <uint32_t>(head - memory - BATCH_HEADER_BYTES))
    store32(memory + 32, <uint32_t>job.entry_count)
    store32(memory + 36, crc32c_of(memory, BATCH_HEADER_BYTES - 4, job.salt))


cdef int provide(Shared *shared, size_t length) noexcept nogil:
    """Allocate memory for ``length`` bytes; return an errno, or 0."""
    cdef void *memory = NULL
    cdef size_t capacity = max(shared.capacity, <size_t>MEMORY_BYTES)
    cdef int error
    while capacity < length:
        capacity *= 2
    if capacity == shared.capacity:
        return 0
    error = posix_memalign(&memory, MEMORY_ALIGNMENT, capacity)
    if error:
        return error
    free(shared.memory)
    shared.memory = <unsigned char *>memory
    shared.capacity = capacity
    return 0


cdef ssize_t write_job(Shared *shared, const Job *job) noexcept nogil:
    """Return the number of durably written bytes, or an errno as a negative number."""
    cdef ssize_t written
    cdef iovec vector
    cdef int error = provide(shared, job.length)
    if error:
        return -error
    lay_out(job, shared.memory)
    vector.iov_base = shared.memory
    vector.iov_len = job.length
    while True:
        written = pwritev2(job.descriptor, &vector, 1, <off_t>job.offset, RWF_DSYNC)
        if written >= 0:
            return written
        if errno != EINTR:
            return -errno


cdef inline uint64_t now_nanoseconds() noexcept nogil:
    cdef timespec now
    clock_gettime(CLOCK_MONOTONIC, &now)
    return <uint64_t>now.tv_sec * 1000000000 + <uint64_t>now.tv_nsec


cdef inline void sleep_until(uint64_t nanoseconds) noexcept nogil:
    cdef timespec until
    until.tv_sec = <time_t>(nanoseconds // 1000000000)
    until.tv_nsec = <long>(nanoseconds % 1000000000)
    while clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &until, NULL) == EINTR:
        pass


cdef void *run_thread(void *argument) noexcept nogil:
    cdef Shared *shared = <Shared *>argument
    cdef Job *job
    cdef uint64_t one = 1
    cdef uint64_t interval = shared.interval_nanoseconds
    cdef uint64_t begun = 0
    cdef bint blocked, stopping
    cdef sigset_t signals
    # Signals are for the interpreter's threads.
    sigfillset(&signals)
    pthread_sigmask(SIG_SETMASK, &signals, NULL)
    if interval:
        # By default the kernel may make each sleep 0.05 ms longer.
        prctl(PR_SET_TIMERSLACK, <unsigned long>1)
    pthread_mutex_lock(&shared.lock)
    while True:
        while shared.over == shared.submitted and not shared.stopping:
            pthread_cond_wait(&shared.changed, &shared.lock)
        if shared.over == shared.submitted:
            break
        job = &shared.jobs[shared.over % SLOTS]
        blocked = shared.blocked
        pthread_mutex_unlock(&shared.lock)
        if interval:
            begun = now_nanoseconds()
        job.result = 0 if blocked else write_job(shared, job)
        pthread_mutex_lock(&shared.lock)
        if job.result != <ssize_t>job.length:
            shared.blocked = True
        shared.over += 1
        stopping = shared.stopping
        pthread_mutex_unlock(&shared.lock)
        # An eventfd takes any number of these; a reader may be faster than this line.
        write(shared.event_fd, &one, sizeof(one))
        if interval and not stopping and now_nanoseconds() < begun + interval:
            # A batch that is submitted meanwhile needs no wake-up.
            sleep_until(begun + interval)
        pthread_mutex_lock(&shared.lock)
    pthread_mutex_unlock(&shared.lock)
    return NULL


cdef class JournalThread:
    """The journal's thread. One other thread calls its methods.

    The thread signals ``event_fd``, an eventfd, whenever a batch is finished. It begins to write a
    batch ``interval_seconds_min`` after the one before, or later.
    """

    cdef Shared shared
    cdef pthread_t thread
    cdef bint running
    cdef uint64_t taken

    def __cinit__(self, int event_fd, double interval_seconds_min=0.0):
        pthread_mutex_init(&self.shared.lock, NULL)
        pthread_cond_init(&self.shared.changed, NULL)
        self.shared.event_fd = event_fd
        self.shared.interval_nanoseconds = <uint64_t>(interval_seconds_min * 1e9)
        cdef int error = pthread_create(&self.thread, NULL, run_thread, &self.shared)
        if error:
            raise OSError(error, "the journal's thread cannot be started")
        self.running = True
        pthread_setname_np(self.thread, b"journal-writer")

    def __dealloc__(self):
        cdef Py_ssize_t slot
        self.end()
        while self.taken < self.shared.submitted:
            self.release(&self.shared.jobs[self.taken % SLOTS])
            self.taken += 1
        for slot in range(SLOTS):
            PyMem_RawFree(self.shared.jobs[slot].parts)
            PyMem_RawFree(self.shared.jobs[slot].entries)
        free(self.shared.memory)
        pthread_cond_destroy(&self.shared.changed)
        pthread_mutex_destroy(&self.shared.lock)

    def submit(
        self,
        list records not None,
        *,
        int descriptor,
        uint64_t offset,
        size_t length,
        uint64_t generation,
        uint32_t salt,
        uint64_t number,
        uint64_t durable_number,
    ):
        """Queue ``records`` to be written at ``offset``, padded with zeros to ``length``.

        The descriptor stays open until the batch's result is fetched. At most ``OUTSTANDING_MAX``
        batches are submitted and not fetched.
        """
        cdef Job *job = &self.shared.jobs[self.shared.submitted % SLOTS]
        if not self.running:
            raise ValueError("the thread was stopped")
        if self.shared.submitted - self.taken >= SLOTS:
            raise ValueError("too many batches are outstanding")
        job.descriptor, job.offset, job.length = descriptor, offset, length
        job.generation, job.salt = generation, salt
        job.number, job.durable_number = number, durable_number
        job.part_count = 0
        try:
            self.describe(job, records)
            if batch_bytes(job) > length:
                raise ValueError(f"the batch has more than {length} bytes")
        except BaseException:
            self.release(job)
            raise
        with nogil:
            pthread_mutex_lock(&self.shared.lock)
            self.shared.submitted += 1
            pthread_cond_signal(&self.shared.changed)
            pthread_mutex_unlock(&self.shared.lock)

    def fetch_results(self):
        """Remove and return the batches that ended since the last call, in order.

        Each is the number of its durable bytes (all, or it failed) or an errno as a negative
        number.
        """
        cdef uint64_t over
        cdef Job *job
        cdef list taken = []
        pthread_mutex_lock(&self.shared.lock)
        over = self.shared.over
        pthread_mutex_unlock(&self.shared.lock)
        while self.taken < over:
            job = &self.shared.jobs[self.taken % SLOTS]
            self.release(job)
            taken.append(job.result)
            self.taken += 1
        return taken

    def resume(self):
        """Write later batches again after a failure; only when nothing is outstanding."""
        pthread_mutex_lock(&self.shared.lock)
        self.shared.blocked = False
        pthread_mutex_unlock(&self.shared.lock)

    def stop(self):
        """Write all submitted batches and end the thread. Idempotent."""
        self.end()

    cdef void end(self) noexcept:
        if not self.running:
            return
        self.running = False
        with nogil:
            pthread_mutex_lock(&self.shared.lock)
            self.shared.stopping = True
            pthread_cond_signal(&self.shared.changed)
            pthread_mutex_unlock(&self.shared.lock)
            pthread_join(self.thread, NULL)

    cdef int describe(self, Job *job, list records) except -1:
        cdef Entry *entry
        cdef Py_ssize_t count = len(records)
        cdef Py_ssize_t length
        if count > job.entry_capacity:
            entry = <Entry *>PyMem_RawRealloc(job.entries, <size_t>count * sizeof(Entry))
            if entry == NULL:
                raise MemoryError
            job.entries, job.entry_capacity = entry, count
        job.entry_count = 0
        for record in records:
            entry = &job.entries[job.entry_count]
            entry.kind = record.kind
            entry.container_id = record.container_id
            entry.epoch = record.epoch
            entry.position = record.position
            entry.length = record.length
            entry.part_count = 0
            length = 0
            for part in record.parts:
                length += self.pin(job, part)
                entry.part_count += 1
            if length != <Py_ssize_t>entry.length:
                raise ValueError(f"a record of {entry.length} bytes has {length}")
            job.entry_count += 1
        return 0

    cdef Py_ssize_t pin(self, Job *job, part) except -1:
        cdef Py_ssize_t capacity
        cdef Py_buffer *parts
        if job.part_count == job.part_capacity:
            capacity = max(8, job.part_capacity * 2)
            parts = <Py_buffer *>PyMem_RawRealloc(
                job.parts, <size_t>capacity * sizeof(Py_buffer)
            )
            if parts == NULL:
                raise MemoryError
            job.parts, job.part_capacity = parts, capacity
        PyObject_GetBuffer(part, &job.parts[job.part_count], PyBUF_SIMPLE)
        job.part_count += 1
        return job.parts[job.part_count - 1].len

    cdef void release(self, Job *job) noexcept:
        while job.part_count:
            job.part_count -= 1
            PyBuffer_Release(&job.parts[job.part_count])
