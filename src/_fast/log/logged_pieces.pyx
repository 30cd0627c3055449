"""The places in a log where the bytes of a segment lie.

Owns: ``LoggedPieces``, a sorted array: a recovery adds to its end, flushes remove its beginning.

Invariants:
1. The pieces of a segment are sorted by offset and do not overlap: a piece that begins before the
   end of the last one is refused. Held by ``test_pieces_come_in_order``.
"""

from libc.stdint cimport int64_t, uint32_t, uint64_t
from libc.stdlib cimport free, realloc
from libc.string cimport memmove

Piece = tuple


cdef struct Place:
    int64_t offset
    uint64_t position
    uint32_t length
    uint32_t start
    uint32_t sum


cdef class LoggedPieces:
    """The places of a segment's bytes in a log."""

    cdef Place *pieces
    cdef Py_ssize_t first
    cdef Py_ssize_t end_place
    cdef Py_ssize_t capacity

    def __dealloc__(self):
        free(self.pieces)

    def __len__(self):
        return self.end_place - self.first

    @property
    def end(self):
        """Return the end of the last piece; 0 when there is none."""
        if self.first == self.end_place:
            return 0
        return piece_end(&self.pieces[self.end_place - 1])

    def add(
        self, int64_t offset, uint32_t length, uint64_t position, uint32_t start, uint32_t sum
    ):
        """Add a piece after all others. Raises ``ValueError`` for any other place."""
        cdef Place *piece
        if length == 0 or (
            self.first < self.end_place and offset < piece_end(&self.pieces[self.end_place - 1])
        ):
            raise ValueError(f"a piece at {offset} is not behind those up to {self.end}")
        if self.end_place == self.capacity:
            self.make_room()
        piece = &self.pieces[self.end_place]
        piece.offset, piece.length = offset, length
        piece.position, piece.start, piece.sum = position, start, sum
        self.end_place += 1

    cdef int make_room(self) except -1:
        cdef Py_ssize_t capacity = max(8, self.capacity * 2)
        cdef Place *pieces = <Place *>realloc(self.pieces, capacity * sizeof(Place))
        if pieces == NULL:
            raise MemoryError("no memory for places in the log")
        self.pieces, self.capacity = pieces, capacity
        return 0

    cdef Py_ssize_t place_of(self, int64_t offset) noexcept:
        """Return the place of the first piece that ends after ``offset``."""
        cdef Py_ssize_t low = self.first
        cdef Py_ssize_t high = self.end_place
        cdef Py_ssize_t middle
        while low < high:
            middle = (low + high) // 2
            if piece_end(&self.pieces[middle]) <= offset:
                low = middle + 1
            else:
                high = middle
        return low

    def contiguous_end(self, int64_t offset):
        """Return the end of the bytes from ``offset`` on that are in the log without a gap."""
        cdef Py_ssize_t place = self.place_of(offset)
        while place < self.end_place and self.pieces[place].offset <= offset:
            offset = piece_end(&self.pieces[place])
            place += 1
        return offset

    def find(self, int64_t offset, int64_t end):
        """Return the pieces from ``offset`` to before ``end``, up to the first gap."""
        cdef Py_ssize_t place = self.place_of(offset)
        cdef const Place *piece
        cdef list found = []
        while place < self.end_place and offset < end:
            piece = &self.pieces[place]
            if piece.offset > offset:
                break
            found.append((piece.offset, piece.length, piece.position, piece.start, piece.sum))
            offset = piece_end(piece)
            place += 1
        return found

    def drop_before(self, int64_t offset):
        """Forget the pieces that end at ``offset`` or before."""
        cdef Py_ssize_t count
        self.first = self.place_of(offset)
        count = self.end_place - self.first
        if count == 0:
            free(self.pieces)
            self.pieces = NULL
            self.first = self.end_place = self.capacity = 0
        elif self.first > count:
            memmove(self.pieces, self.pieces + self.first, count * sizeof(Place))
            self.first, self.end_place = 0, count


cdef inline int64_t piece_end(const Place *piece) noexcept:
    return piece.offset + piece.length
