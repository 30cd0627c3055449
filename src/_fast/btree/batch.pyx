"""Batches of changes to a B+Tree: packed, sorted by key, one change for each key.

A change is a key and a signed 64-bit value. ``NULL_VALUE`` removes the key.

Invariants:
1. Keys ascend by their bytes, and each occurs once. When several changes have the same key, the
   last one is kept. Held by ``TestTreeModel``.
"""

from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_Release, PyObject_CheckBuffer, PyObject_GetBuffer
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_CheckExact, PyBytes_GET_SIZE
from libc.stdint cimport int64_t, uint32_t, uint64_t
from libc.stdlib cimport free, malloc
from libc.string cimport memcmp, memcpy

from _fast.btree.page cimport KEY_BYTES_MAX, VALUE_BYTES, load64, store64

cdef int64_t NULL_NUMBER = <int64_t>(<uint64_t>1 << 63)

NULL_VALUE = NULL_NUMBER

cdef enum:
    CHANGES_MAX = 0x7FFFFFFF


cdef struct Item:
    # The first bytes in which keys differ, and the change's place.
    uint64_t prefix
    uint32_t index


cdef inline uint64_t prefix_of(const unsigned char *key, Py_ssize_t key_length) noexcept nogil:
    cdef uint64_t prefix = 0
    cdef Py_ssize_t i
    if key_length >= 8:
        return load64(key)
    for i in range(key_length):
        prefix |= <uint64_t>key[i] << (56 - 8 * i)
    return prefix


cdef class Batch:
    """Changes for ``Tree.prepare``: pairs of key and value, a mapping, or packed changes.

    A value is an integer, or None (or ``NULL_VALUE``) to remove the key. Packed changes are keys
    with their values as 8 bytes, big endian, one after the other.
    """

    def __cinit__(self, Py_ssize_t key_length, changes):
        if not 1 <= key_length <= KEY_BYTES_MAX:
            raise ValueError(f"a key has 1 to {KEY_BYTES_MAX} bytes, not {key_length}")
        self.key_length = key_length
        self.stride = key_length + VALUE_BYTES
        if PyObject_CheckBuffer(changes):
            self._add_packed(changes)
        elif isinstance(changes, (list, tuple)):
            self._add_pairs(changes)
        elif hasattr(changes, "items"):
            self._add_pairs(list(changes.items()))
        else:
            self._add_pairs(list(changes))
        if not self._in_order():
            self._sort()

    def __dealloc__(self):
        free(self.changes)

    def __len__(self):
        return self.count

    def pack(self):
        """Return the changes as bytes, in order."""
        return (<char *>self.changes)[: self.count * self.stride]

    cdef int _allocate(self, Py_ssize_t count) except -1:
        if count > CHANGES_MAX:
            raise ValueError(f"{count} changes are too many for one batch")
        self.changes = <unsigned char *>malloc(<size_t>(count * self.stride) + 1)
        if self.changes == NULL:
            raise MemoryError(f"no room for {count} changes")
        self.count = count
        return 0

    cdef int _add_packed(self, object data) except -1:
        cdef Py_buffer view
        PyObject_GetBuffer(data, &view, PyBUF_SIMPLE)
        try:
            if view.len % self.stride:
                raise ValueError(f"{view.len} bytes are not changes of {self.stride} bytes each")
            self._allocate(view.len // self.stride)
            memcpy(self.changes, view.buf, <size_t>view.len)
        finally:
            PyBuffer_Release(&view)
        return 0

    cdef int _add_pairs(self, object pairs) except -1:
        cdef Py_ssize_t position = 0
        self._allocate(len(pairs))
        for key, value in pairs:
            # Reading a pair may run any code, which may have made the list longer.
            if position == self.count:
                break
            self._add_pair(position, key, value)
            position += 1
        self.count = position
        return 0

    cdef int _add_pair(self, Py_ssize_t position, object key, object value) except -1:
        cdef unsigned char *change = self.changes + position * self.stride
        cdef int64_t number = NULL_NUMBER
        if value is not None:
            number = value
        if not PyBytes_CheckExact(key):
            key = bytes(memoryview(key))
        if PyBytes_GET_SIZE(key) != self.key_length:
            raise ValueError(
                f"a key of {PyBytes_GET_SIZE(key)} bytes where keys have {self.key_length}"
            )
        memcpy(change, PyBytes_AS_STRING(key), <size_t>self.key_length)
        store64(change + self.key_length, <uint64_t>number)
        return 0

    cdef bint _in_order(self) noexcept:
        cdef const unsigned char *change = self.changes
        for _ in range(self.count - 1):
            if memcmp(change, change + self.stride, <size_t>self.key_length) >= 0:
                return False
            change += self.stride
        return True

    cdef int _sort(self) except -1:
        """Sort by merging, which keeps changes of one key in the order in which they came."""
        cdef size_t bytes_needed = <size_t>self.count * sizeof(Item)
        cdef Item *items = <Item *>malloc(2 * bytes_needed)
        cdef unsigned char *ordered = <unsigned char *>malloc(<size_t>(self.count * self.stride))
        cdef Py_ssize_t shared = self._shared_bytes()
        cdef Item *result
        cdef uint32_t i
        if items == NULL or ordered == NULL:
            free(items)
            free(ordered)
            raise MemoryError(f"no room to sort {self.count} changes")
        for i in range(<uint32_t>self.count):
            items[i].index = i
            items[i].prefix = prefix_of(
                self.changes + i * self.stride + shared, self.key_length - shared
            )
        result = merge_sort(
            items, items + self.count, self.count, self.changes, self.stride, self.key_length
        )
        self.count = keep_last(
            ordered, result, self.count, self.changes, self.stride, self.key_length
        )
        free(items)
        free(self.changes)
        self.changes = ordered
        return 0

    cdef Py_ssize_t _shared_bytes(self) noexcept:
        """Return the number of bytes with which all keys begin."""
        cdef const unsigned char *change = self.changes
        cdef Py_ssize_t shared = self.key_length
        cdef Py_ssize_t i
        for _ in range(self.count - 1):
            change += self.stride
            for i in range(shared):
                if change[i] != self.changes[i]:
                    shared = i
                    break
            if shared == 0:
                break
        return shared


cdef inline bint goes_first(
    Item *left,
    Item *right,
    const unsigned char *changes,
    Py_ssize_t stride,
    Py_ssize_t key_length,
) noexcept nogil:
    """Return whether ``left``, which came earlier, may stay before ``right``."""
    if left.prefix != right.prefix:
        return left.prefix < right.prefix
    return memcmp(
        changes + left.index * stride, changes + right.index * stride, <size_t>key_length
    ) <= 0


cdef Item *merge_sort(
    Item *items,
    Item *other,
    Py_ssize_t count,
    const unsigned char *changes,
    Py_ssize_t stride,
    Py_ssize_t key_length,
) noexcept nogil:
    """Sort ``items`` by merging from one array into the other; return the one with the result."""
    cdef Py_ssize_t width = 1
    cdef Py_ssize_t start, left, right, middle, end, to
    cdef bint first
    while width < count:
        start = 0
        while start < count:
            middle = min(start + width, count)
            end = min(middle + width, count)
            left, right = start, middle
            to = start
            while left < middle and right < end:
                # Branch-free, because no processor could predict this branch.
                first = goes_first(items + left, items + right, changes, stride, key_length)
                other[to] = items[left if first else right]
                left += first
                right += not first
                to += 1
            memcpy(other + to, items + left, <size_t>(middle - left) * sizeof(Item))
            to += middle - left
            memcpy(other + to, items + right, <size_t>(end - right) * sizeof(Item))
            start = end
        items, other = other, items
        width *= 2
    return items


cdef Py_ssize_t keep_last(
    unsigned char *to,
    Item *items,
    Py_ssize_t count,
    const unsigned char *changes,
    Py_ssize_t stride,
    Py_ssize_t key_length,
) noexcept nogil:
    """Copy the changes in the order of ``items``, the last one of each key; return how many."""
    cdef Py_ssize_t taken = 0
    cdef Py_ssize_t i
    cdef const unsigned char *change
    for i in range(count):
        change = changes + items[i].index * stride
        if taken and memcmp(to + (taken - 1) * stride, change, <size_t>key_length) == 0:
            taken -= 1
        memcpy(to + taken * stride, change, <size_t>stride)
        taken += 1
    return taken
