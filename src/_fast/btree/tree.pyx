"""A B+Tree on storage that grows at its end and is truncated at its beginning.

Owns: the place of a tree's root, and the search of its pages. Pages come from a cache, or from
``held``, a dictionary of pages by offset that the caller keeps for one operation. A missing page is
returned as ``(offset, length, level)``: the caller reads it, gives it to ``admit`` and tries again.
This module does no I/O.

Invariants:
1. An update that was prepared and not committed does not change what the tree returns. Held by
   ``TestTreeModel``.
2. Only pages that passed all checks are searched. A wrong page raises ``CorruptPageError``. Held by
   ``test_every_changed_byte_of_a_page_or_delta_is_refused``.
"""

from cpython.bytes cimport (
    PyBytes_AS_STRING,
    PyBytes_CheckExact,
    PyBytes_FromStringAndSize,
    PyBytes_GET_SIZE,
)
from libc.stdint cimport int64_t, uint64_t
from libc.string cimport memcmp

from _fast.btree.batch cimport Batch
from _fast.btree.cache cimport PageCache, page_at
from _fast.btree.delta cimport Deltas, View
from _fast.btree.page cimport (
    DELTA_BYTES_MAX_,
    DELTA_LEVEL,
    HEADER_BYTES,
    KEY_BYTES_MAX,
    PAGE_BYTES_MAX_,
    VALUE_BYTES,
    Footer,
    Pointer,
    check_page,
    child_slot,
    is_key,
    load64,
    load_pointer,
    lower_bound,
    page_bytes,
    page_level,
    record_bytes,
)
from _fast.btree.update cimport Rebuild, Update

from _fast.btree.batch import NULL_VALUE
from _fast.btree.page import FOOTER_BYTES, FOOTER_MAGIC, PAGE_BYTES_MAX, CorruptPageError

__all__ = [
    "FOOTER_BYTES",
    "FOOTER_MAGIC",
    "NULL_VALUE",
    "PAGE_BYTES_MAX",
    "Batch",
    "CorruptPageError",
    "Footer",
    "PageCache",
    "Tree",
    "Update",
]

# A cimported type is not by itself a name of the module.
globals().update(Batch=Batch, Footer=Footer, PageCache=PageCache, Update=Update)

# Number of leaves after a missing one that a scan requests with it.
cdef enum:
    READ_AHEAD = 16
    # Number of pages by which prefetching is ahead of writing.
    PAGES_AHEAD = 4
    # This length is good for most trees: a change writes a whole leaf, and every leaf needs a
    # record in the index.
    LEAF_BYTES = 1024
    LEAF_RECORDS = 32


def records_max(Py_ssize_t page_bytes_max, int level, Py_ssize_t key_length):
    """Return how many records a page of that many bytes may have."""
    return (page_bytes_max - HEADER_BYTES) // record_bytes(level, key_length)


cdef class Tree:
    """One tree, for one thread; it has one update at a time.

    Leaves and index pages have at most ``leaf_bytes_max`` and ``index_bytes_max`` bytes (a leaf of
    0 bytes stands for 1 KiB, or for 32 records if these are longer). With ``compaction``, every
    update moves the lowest leaf, and more leaves while the tree takes more than ``retained_ratio``
    times the room of its pages (0 stands for: never more).
    """

    def __init__(
        self,
        PageCache cache not None,
        *,
        Py_ssize_t key_length=16,
        Py_ssize_t leaf_bytes_max=0,
        Py_ssize_t index_bytes_max=PAGE_BYTES_MAX_,
        bint compaction=True,
        double retained_ratio=2.5,
        Py_ssize_t delta_bytes_max=262144,
    ):
        cdef Rebuild rebuild
        if not 1 <= key_length <= KEY_BYTES_MAX:
            raise ValueError(f"a key has 1 to {KEY_BYTES_MAX} bytes, not {key_length}")
        if leaf_bytes_max == 0:
            leaf_bytes_max = HEADER_BYTES + LEAF_RECORDS * record_bytes(0, key_length)
            leaf_bytes_max = min(max(leaf_bytes_max, LEAF_BYTES), PAGE_BYTES_MAX_)
        for bytes_max, level in ((leaf_bytes_max, 0), (index_bytes_max, 1)):
            if bytes_max > PAGE_BYTES_MAX_ or records_max(bytes_max, level, key_length) < 2:
                raise ValueError(
                    f"a page has at most {PAGE_BYTES_MAX_} bytes and room for two records:"
                    f" {bytes_max} bytes will not do for keys of {key_length}"
                )
        if not 0 <= delta_bytes_max <= DELTA_BYTES_MAX_:
            raise ValueError(
                f"deltas have 0 to {DELTA_BYTES_MAX_} bytes, {delta_bytes_max} will not do"
            )
        rebuild = Rebuild(key_length)
        rebuild.leaf_records_max = records_max(leaf_bytes_max, 0, key_length)
        rebuild.index_records_max = records_max(index_bytes_max, 1, key_length)
        rebuild.page_bytes_max = max(leaf_bytes_max, index_bytes_max)
        rebuild.compacts = compaction
        rebuild.retained_ratio = retained_ratio
        rebuild.delta_bytes_max = delta_bytes_max
        self.key_length = key_length
        self.cache = cache
        if self._owner == 0:
            self._owner = cache.register()
        rebuild.cache = cache
        rebuild.owner = self._owner
        self._rebuild = rebuild
        self.restore(None, end=0)

    def __dealloc__(self):
        if self.cache is not None:
            self.cache.forget(self._owner)

    def restore(self, Footer footer, *, uint64_t end):
        """Set the tree to the footer's, or to the empty one; the next update begins at ``end``."""
        if footer is None:
            footer = Footer.__new__(Footer)
            footer.root_level = -1
            footer.key_length = <int>self.key_length
            footer.min_offset = end
        elif footer.key_length != self.key_length:
            raise ValueError(
                f"the tree has keys of {footer.key_length} bytes, not {self.key_length}"
            )
        elif end < footer.end:
            raise ValueError(f"the tree ends at {footer.end}, behind {end}")
        self.cache.forget(self._owner)
        self._rebuild.own_bytes = 0
        self._rebuild.deltas.restore(footer)
        self._rebuild.moves.restart(footer.min_offset)
        self.footer = footer
        self.end = end

    def admit(self, data, *, uint64_t offset, Py_ssize_t length, int level):
        """Check a page that was read, cache it, and return it."""
        page = data if PyBytes_CheckExact(data) else bytes(data)
        if PyBytes_GET_SIZE(page) != length:
            raise CorruptPageError(offset, f"it has {PyBytes_GET_SIZE(page)} of {length} bytes")
        check_page(
            <const unsigned char *>PyBytes_AS_STRING(page), length, offset, level, self.key_length
        )
        if level == DELTA_LEVEL:
            self._rebuild.deltas.admit(page, offset)
        else:
            self.cache.put(
                self._owner, offset, <const unsigned char *>PyBytes_AS_STRING(page), length, level
            )
        return page

    def find(self, key, dict held=None):
        """Return a key's value or None, or as a tuple the page that must be read first."""
        cdef const unsigned char *sought = self._checked_key(key)
        cdef View view
        missing = self._leaf(sought, held, &view)
        return self._value(&view, sought) if missing is None else missing

    def find_many(self, keys, dict held=None):
        """Return the values of keys, in their order, and the pages that must be read first."""
        cdef list values = []
        cdef dict missing = {}
        cdef const unsigned char *sought
        cdef View view
        if self._rebuild.deltas.awaited:
            return values, list(self._rebuild.deltas.awaited)
        for key in keys:
            sought = self._checked_key(key)
            page = self._leaf(sought, held, &view)
            if page is not None:
                missing[page[0]] = page
            elif not missing:
                values.append(self._value(&view, sought))
        return values, list(missing.values())

    cdef const unsigned char *_checked_key(self, object key) except NULL:
        if not PyBytes_CheckExact(key):
            raise TypeError(f"a key is bytes, not {type(key).__name__}")
        if PyBytes_GET_SIZE(key) != self.key_length:
            raise ValueError(
                f"a key of {PyBytes_GET_SIZE(key)} bytes where keys have {self.key_length}"
            )
        return <const unsigned char *>PyBytes_AS_STRING(key)

    cdef tuple _leaf(self, const unsigned char *key, dict held, View *leaf):
        """Show the leaf for a key, or return the page that must be read first.

        The empty tree has one leaf.
        """
        cdef Footer footer = self.footer
        cdef Deltas deltas = self._rebuild.deltas
        cdef int level = footer.root_level
        cdef Pointer child
        cdef Py_ssize_t stride, slot
        leaf.count = 0
        if level < 0:
            return None
        if deltas.awaited:
            return deltas.awaited[0]
        child.offset = footer.root_offset
        child.length = footer.root_length
        while True:
            if not deltas.view(self.cache, self._owner, held, child, level, leaf):
                return child.offset, child.length, level
            if level == 0:
                return None
            stride = record_bytes(level, self.key_length)
            slot = child_slot(leaf.records, stride, self.key_length, 0, leaf.count, key)
            child = load_pointer(leaf.records + slot * stride + self.key_length)
            level -= 1

    cdef object _value(self, const View *leaf, const unsigned char *key):
        cdef Py_ssize_t stride = self.key_length + VALUE_BYTES
        cdef const unsigned char *record
        cdef Py_ssize_t position
        if leaf.count == 0:
            return None
        position = lower_bound(leaf.records, stride, self.key_length, 0, leaf.count, key)
        record = leaf.records + position * stride
        if position == leaf.count or not is_key(record, key, self.key_length):
            return None
        return <int64_t>load64(record + self.key_length)

    def scan(self, first, last, *, Py_ssize_t limit, dict held=None):
        """Return entries of one leaf with keys from ``first`` to ``last``, both included.

        Returns ``(entries, resume, missing)``: at most ``limit`` entries, the key to continue from
        (None at the end), and the pages that must be read before another try.
        """
        cdef Footer footer = self.footer
        cdef const unsigned char *sought = self._checked_key(first)
        cdef const unsigned char *bound = self._checked_key(last)
        cdef int level = footer.root_level
        cdef Deltas deltas = self._rebuild.deltas
        cdef Py_ssize_t stride
        cdef Py_ssize_t slot = 0
        cdef Pointer child
        cdef View view
        cdef View above
        cdef bytes resume = None
        if level < 0 or memcmp(sought, bound, <size_t>self.key_length) > 0:
            return [], None, []
        if deltas.awaited:
            return [], None, list(deltas.awaited)
        child.offset = footer.root_offset
        child.length = footer.root_length
        above.count = 0
        while True:
            if not deltas.view(self.cache, self._owner, held, child, level, &view):
                missing = [(child.offset, child.length, level)]
                if level == 0:
                    self._read_ahead(&above, slot, bound, held, missing)
                return [], None, missing
            if level == 0:
                return self._entries(&view, sought, bound, limit, resume)
            stride = record_bytes(level, self.key_length)
            slot = child_slot(view.records, stride, self.key_length, 0, view.count, sought)
            if slot + 1 < view.count:
                resume = self._key_within(view.records + (slot + 1) * stride, bound)
            child = load_pointer(view.records + slot * stride + self.key_length)
            level -= 1
            above = view

    cdef bytes _key_within(self, const unsigned char *key, const unsigned char *bound):
        """Return the key, or None if it is greater than the bound."""
        if memcmp(key, bound, <size_t>self.key_length) > 0:
            return None
        return PyBytes_FromStringAndSize(<const char *>key, self.key_length)

    cdef int _read_ahead(
        self,
        const View *above,
        Py_ssize_t slot,
        const unsigned char *bound,
        dict held,
        list missing,
    ) except -1:
        """Add the leaves after a slot's leaf that a scan up to the bound will need."""
        cdef Py_ssize_t stride = record_bytes(1, self.key_length)
        cdef const unsigned char *record
        cdef Py_ssize_t position
        cdef Pointer child
        for position in range(slot + 1, min(slot + 1 + READ_AHEAD, above.count)):
            record = above.records + position * stride
            if memcmp(record, bound, <size_t>self.key_length) > 0:
                break
            child = load_pointer(record + self.key_length)
            if page_at(self.cache, self._owner, held, child.offset, child.length, 0) == NULL:
                missing.append((child.offset, child.length, 0))
        return 0

    cdef object _entries(
        self,
        const View *leaf,
        const unsigned char *first,
        const unsigned char *bound,
        Py_ssize_t limit,
        bytes resume,
    ):
        cdef Py_ssize_t key_length = self.key_length
        cdef Py_ssize_t stride = key_length + VALUE_BYTES
        cdef Py_ssize_t position = lower_bound(
            leaf.records, stride, key_length, 0, leaf.count, first
        )
        cdef const unsigned char *record = leaf.records + position * stride
        cdef list entries = []
        for _ in range(position, leaf.count):
            if memcmp(record, bound, <size_t>key_length) > 0:
                return entries, None, []
            key = PyBytes_FromStringAndSize(<const char *>record, key_length)
            if limit == 0:
                return entries, key, []
            entries.append((key, <int64_t>load64(record + key_length)))
            limit -= 1
            record += stride
        return entries, resume, []

    def prepare(self, Batch batch not None, dict held=None):
        """Return the ``Update`` for a batch, or None if the batch changes nothing.

        Returns a list instead if these pages must be read first. The tree does not change.
        """
        if batch.key_length != self.key_length:
            raise ValueError(
                f"the tree has keys of {self.key_length} bytes, not {batch.key_length}"
            )
        if batch.count == 0:
            return None
        return self._rebuild.run(self.footer, self.end, batch, held)

    def commit(self, Update update not None):
        """Replace the tree by that of an update whose data were written at their offset."""
        if update.offset != self.end or (
            update.footer.update_number != self.footer.update_number + 1
        ):
            raise ValueError(f"the update for offset {update.offset} was not made for this tree")
        self._replace_pages(update)
        if update.entries is None:
            self._rebuild.deltas.clear()
            self._rebuild.moves.advance(update.footer.min_offset)
        else:
            self._rebuild.deltas.append(
                update.entries, update.footer.delta_offset, update.footer.delta_length
            )
            self._rebuild.moves.advance(update.lowest)
        self._rebuild.own_bytes = update.footer.offset - update.offset - update.moved_bytes
        self.footer = update.footer
        self.end = update.footer.end

    cdef void _replace_pages(self, Update update) noexcept:
        """Put an update's pages into the cache in place of the pages that it replaces."""
        cdef const uint64_t *dropped = <const uint64_t *>PyBytes_AS_STRING(update.dropped)
        cdef Py_ssize_t count = PyBytes_GET_SIZE(update.dropped) // <Py_ssize_t>sizeof(uint64_t)
        cdef const unsigned char *page = <const unsigned char *>PyBytes_AS_STRING(update.data)
        cdef const unsigned char *end = page + (update.footer.offset - update.offset)
        cdef uint64_t offset = update.offset
        cdef Py_ssize_t index, length
        for index in range(count):
            self.cache.expect_bucket(self._owner, dropped[index])
        for index in range(count):
            self.cache.expect_entry(self._owner, dropped[index])
        for index in range(min(PAGES_AHEAD, count)):
            self.cache.expect_whole_page(self._owner, dropped[index])
        index = 0
        while page < end and page_level(page) != DELTA_LEVEL:
            length = page_bytes(page, self.key_length)
            if index + PAGES_AHEAD < count:
                self.cache.expect_whole_page(self._owner, dropped[index + PAGES_AHEAD])
            if index < count:
                self.cache.replace(
                    self._owner, dropped[index], offset, page, length, page_level(page)
                )
            else:
                self.cache.put(self._owner, offset, page, length, page_level(page))
            offset += <uint64_t>length
            page += length
            index += 1
        while index < count:
            self.cache.drop(self._owner, dropped[index])
            index += 1
        self.cache.settle()
