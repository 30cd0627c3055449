"""The append-only B+Tree."""

from libc.stdint cimport uint32_t, uint64_t

from _fast.btree.cache cimport PageCache
from _fast.btree.delta cimport View
from _fast.btree.page cimport Footer
from _fast.btree.update cimport Rebuild, Update


cdef class Tree:
    cdef readonly Py_ssize_t key_length
    cdef readonly PageCache cache
    cdef readonly Footer footer
    # The offset of the next update.
    cdef readonly uint64_t end
    cdef uint32_t _owner
    cdef Rebuild _rebuild

    cdef const unsigned char *_checked_key(self, object key) except NULL
    cdef tuple _leaf(self, const unsigned char *key, dict held, View *leaf)
    cdef object _value(self, const View *leaf, const unsigned char *key)
    cdef bytes _key_within(self, const unsigned char *key, const unsigned char *bound)
    cdef int _read_ahead(
        self,
        const View *above,
        Py_ssize_t slot,
        const unsigned char *bound,
        dict held,
        list missing,
    ) except -1
    cdef object _entries(
        self,
        const View *leaf,
        const unsigned char *first,
        const unsigned char *bound,
        Py_ssize_t limit,
        bytes resume,
    )
    cdef void _replace_pages(self, Update update) noexcept
