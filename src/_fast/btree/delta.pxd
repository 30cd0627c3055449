"""Changes of the index since its pages were written, for the modules that search and write."""

from libc.stdint cimport int32_t, uint32_t, uint64_t

from _fast.btree.cache cimport PageCache
from _fast.btree.page cimport Footer, Pointer

cdef enum:
    # The fields before an entry's key and its records: page:u64 slot:u16 added:u16 keyed:u8.
    ENTRY_BYTES = 13
    # Maximum number of links of a record: the records to which it leads, one after the other, have
    # numbers of which each has fewer bits set than the one before.
    LINKS_MAX = 33
    # The fields of a record before its links (root:u64 number:u32 links:u16), and those of a link.
    DELTA_HEAD_BYTES = 14
    LINK_BYTES = 16


cdef struct View:
    # A page and its present records. `page` is NULL if the records differ from those of the page,
    # and in the empty tree.
    const unsigned char *page
    const unsigned char *records
    Py_ssize_t count


cdef struct Splice:
    # An entry that is not applied yet, and the next one of the same page.
    Py_ssize_t position
    int32_t next


cdef struct Changed:
    # The offset of the page, which remains its key.
    uint64_t offset
    # The position in the log of a key that belongs to the page.
    Py_ssize_t key_position
    # The present records of the page; empty until the first search of the page.
    unsigned char *records
    Py_ssize_t count
    Py_ssize_t capacity
    # The entries that are not applied to them yet.
    int32_t first_splice
    int32_t last_splice
    # The next changed page in the same bucket.
    int32_t next


cdef struct Link:
    # A record of the chain: the number of updates that it and those before it describe.
    uint32_t number
    uint32_t length
    uint64_t offset
    # The end of the log after these updates.
    Py_ssize_t log_end


cdef class Deltas:
    cdef Py_ssize_t key_length
    cdef Py_ssize_t stride
    # The entries since the index was written.
    cdef unsigned char *log
    cdef Py_ssize_t log_bytes
    cdef Py_ssize_t _log_capacity
    cdef Changed *changed
    cdef int32_t changed_count
    cdef int32_t _changed_capacity
    cdef int32_t *_buckets
    cdef uint64_t _mask
    cdef Splice *_splices
    cdef int32_t _splice_count
    cdef int32_t _splice_capacity
    # The changed page with the lowest offset in storage.
    cdef uint64_t lowest
    # The memory that they take.
    cdef Py_ssize_t changed_bytes
    cdef Link _links[LINKS_MAX]
    cdef int _link_count
    cdef uint32_t number
    # The records of a restored tree, until all of them are admitted.
    cdef readonly list awaited
    cdef dict _records
    cdef uint64_t _root_offset

    cdef void clear(self) noexcept
    cdef int restore(self, Footer footer) except -1
    cdef int admit(self, object record, uint64_t offset) except -1
    cdef list followed(self, object record, uint64_t offset)
    cdef int _replay(self) except -1
    cdef Changed *find(self, uint64_t offset) noexcept
    cdef bint view(
        self,
        PageCache cache,
        uint32_t owner,
        dict held,
        Pointer child,
        int level,
        View *view,
    ) except -1
    cdef int _build_records(self, Changed *changed, const unsigned char *page) except -1
    cdef object encode(self, bytes entries, uint64_t offset, uint64_t root_offset)
    cdef void _forget_records(self, Changed *changed) noexcept
    cdef int _links_kept(self) noexcept
    cdef int append(self, bytes entries, uint64_t offset, Py_ssize_t length) except -1
    cdef int _append_log(
        self, const unsigned char *entries, Py_ssize_t length, uint64_t offset
    ) except -1
    cdef int _apply(self, Py_ssize_t position) except -1
    cdef Changed *_add(self, uint64_t offset, Py_ssize_t key_position) except NULL
    cdef int _queue(self, Changed *changed, Py_ssize_t position) except -1
    cdef int _splice(self, Changed *changed, Py_ssize_t position) except -1
    cdef int _reserve(self, Changed *changed, Py_ssize_t count) except -1
