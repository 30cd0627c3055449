"""Moves appends through a container: from its queue into a data frame, and from a durable frame to
their effects and acknowledgements.

Owns: nothing. For many appends at once it does the work that the metadata update transaction, the
metadata, the memory log and the read index do for one operation, and leaves unusual ones to them.

Example: the queue has 200 appends of 100 bytes to one empty segment, and 5 short records are in the
frame (``test_the_usual_append_goes_the_fast_way`` runs this example).

    accept_appends   gives the appends the offsets 0, 100, ..., 19,900, and puts 200 records into
                     the frame, which has 205 records then
    commit_appends   adds one range, offsets 0 to 20,000, to the memory log, and calls 200
                     completions with the segment lengths 100, 200, ..., 20,000

Invariants:
1. An operation that needs a full check stays at the head of the queue, unchanged: its segment is
   missing, sealed or transient, a condition is false or needs values that are not in memory, or the
   append does not fit into the frame. The code in Python then checks this operation from the
   beginning. Held by ``test_an_append_that_is_left_in_the_queue_is_as_it_came``.
2. For any sequence of operations, the frames, effects, answers and errors are the same as when
   every operation is handled alone. Held by ``test_appends_at_once_do_what_they_do_one_by_one``.
3. Appends that become durable together take effect segment by segment, before any of them is
   acknowledged. They are acknowledged in the order of the queue, even if their segments alternate.
   Held by ``test_completions_come_in_order_when_segments_alternate``.
"""

from cpython.dict cimport PyDict_GetItem, PyDict_Size, PyDict_Update
from cpython.long cimport PyLong_Check
from cpython.ref cimport PyObject
from cpython.tuple cimport PyTuple_GET_ITEM, PyTuple_GET_SIZE
from libc.limits cimport LLONG_MIN

from _fast.log.data_frame cimport DataFrame
from _fast.log.operations cimport AppendOperation, put_append

cdef extern from "Python.h":
    long long PyLong_AsLongLongAndOverflow(object, int *) except? -1

cdef enum:
    BLOCK_BYTES = 4096
    # The effects of an update on the present value, numbered as on the wire.
    SET_IF_ABSENT = 0
    REPLACE = 1
    REPLACE_IF_GREATER = 2
    ACCUMULATE = 3
    REPLACE_IF_EQUALS = 4
    # Shorter appends are joined, up to this length, before they go to the cache.
    JOINED_PART_BYTES_MAX = 8192
    JOINED_BYTES_MAX = 65536

cdef long long ABSENT = LLONG_MIN
cdef bytes NO_DATA = b""


cdef class _Target:
    """A segment to which appends of a batch go."""

    cdef object pending
    # Values of attributes: `changes` of appends that are not durable, `older` ones that may be
    # durable by now, and `committed` ones of the metadata. The first of these with an id counts.
    cdef dict changes
    cdef dict older
    cdef dict committed
    cdef long long segment_id
    cdef long long length
    cdef long long count

    cdef int resolve(self, AppendOperation operation) except -1:
        """Resolve the updates into values; return 0 when the code in Python must do it."""
        cdef dict values = {}
        cdef tuple update
        for item in operation.updates:
            if not isinstance(item, tuple):
                return 0
            update = <tuple>item
            if PyTuple_GET_SIZE(update) != 4 or not self.resolve_one(update, values):
                return 0
        operation.attribute_values = values
        return 1

    cdef int resolve_one(self, tuple update, dict values) except -1:
        cdef object attribute_id = <object>PyTuple_GET_ITEM(update, 0)
        cdef object new_value = <object>PyTuple_GET_ITEM(update, 2)
        cdef PyObject *known
        cdef long long present, value, expected
        cdef int verb, overflow = 0
        known = PyDict_GetItem(values, attribute_id)
        if known == NULL:
            known = PyDict_GetItem(self.changes, attribute_id)
        if known == NULL:
            known = PyDict_GetItem(self.older, attribute_id)
        if known == NULL:
            known = PyDict_GetItem(self.committed, attribute_id)
        if known != NULL:
            present = <long long><object>known
        else:
            try:
                found = self.pending.value_of(attribute_id)
            except Exception:
                return 0  # it will be raised again where the append is checked and refused
            if found is None:
                return 0
            present = found
        verb = <object>PyTuple_GET_ITEM(update, 1)
        if not PyLong_Check(new_value):
            return 0
        value = PyLong_AsLongLongAndOverflow(new_value, &overflow)
        if overflow:
            return 0
        if verb == REPLACE_IF_EQUALS:
            expected = PyLong_AsLongLongAndOverflow(<object>PyTuple_GET_ITEM(update, 3), &overflow)
            if overflow or present != expected:
                return 0
        elif verb == ACCUMULATE:
            if present != ABSENT:
                # Both numbers are far from the bounds of 64 bits, so that their sum cannot
                # overflow.
                if not -(1 << 62) < present < (1 << 62) or not -(1 << 62) < value < (1 << 62):
                    return 0
                new_value = present + value
        elif verb == REPLACE_IF_GREATER:
            if present != ABSENT and value <= present:
                return 0
        elif verb == SET_IF_ABSENT:
            if present != ABSENT:
                return 0
        elif verb != REPLACE:
            return 0
        values[attribute_id] = new_value
        return 1


cdef _Target find_target(object state, object name):
    """Return the segment, or None if appends to it are unusual."""
    cdef _Target target
    try:
        pending = state.find(name)
    except Exception:
        return None  # it will be raised again where the append is checked and refused
    base = pending.base
    memory = base.attribute_memory
    if pending.sealed or memory.is_transient:
        return None
    target = _Target.__new__(_Target)
    target.pending = pending
    target.changes = pending.attributes
    target.older = pending.older
    target.committed = memory.values
    target.segment_id = base.segment_id
    target.length = pending.length
    return target


def accept_appends(
    queue, state, DataFrame frame not None, list accepted, Py_ssize_t block_bytes_max
):
    """Move appends from the head of ``queue`` into ``frame`` and to the end of ``accepted``.

    ``state`` is the pending state. Returns the bytes of cache blocks that the appends may need, at
    most ``block_bytes_max``.
    """
    cdef AppendOperation operation
    cdef _Target target = None
    cdef object target_name = None
    cdef dict targets = {}
    cdef long long sequence_number = state.next_number
    cdef Py_ssize_t total = 0
    cdef Py_ssize_t blocks
    popleft = queue.popleft
    try:
        while queue:
            head = queue[0]
            if type(head) is not AppendOperation:
                break
            operation = <AppendOperation>head
            blocks = (operation.length + BLOCK_BYTES - 1) // BLOCK_BYTES * BLOCK_BYTES
            if total + blocks > block_bytes_max:
                break
            if operation.name is not target_name:
                target_name = operation.name
                target = targets.get(target_name)
                if target is None:
                    target = find_target(state, target_name)
                    if target is None:
                        break
                    targets[target_name] = target
            if operation.expected_offset is not None and operation.expected_offset != target.length:
                break
            if not target.resolve(operation):
                break
            operation.segment_id = target.segment_id
            operation.offset = target.length
            operation.sequence_number = sequence_number
            if not put_append(frame, operation):
                operation.segment_id = -1
                operation.offset = -1
                operation.sequence_number = -1
                operation.attribute_values = {}
                break
            popleft()
            accepted.append(operation)
            PyDict_Update(target.changes, operation.attribute_values)
            target.length += operation.length
            target.count += 1
            sequence_number += 1
            total += blocks
    finally:
        state.next_number = sequence_number
        for target in targets.values():
            if target.count:
                target.pending.length = target.length
                target.pending.in_flight += target.count
                state.segments[target.segment_id] = target.pending
    return total


cdef class _Run:
    """The appends to one segment among those that became durable together."""

    cdef AppendOperation first
    cdef AppendOperation last
    cdef dict values
    # The last append that changed all of ``values``, and those after it that changed some.
    cdef AppendOperation complete
    cdef list partial
    cdef long long count
    cdef list parts
    cdef Py_ssize_t joined_bytes
    cdef list pieces

    cdef int add(self, AppendOperation operation) except -1:
        if self.first is None:
            self.first = operation
            self.values = operation.attribute_values
            self.complete = operation
            self.partial = []
            self.parts = []
            self.pieces = []
        elif operation.attribute_values:
            PyDict_Update(self.values, operation.attribute_values)
            if PyDict_Size(operation.attribute_values) == PyDict_Size(self.values):
                self.complete = operation
                if self.partial:
                    self.partial = []
            else:
                self.partial.append(operation)
        self.last = operation
        self.count += 1
        if operation.length:
            if (
                operation.length > JOINED_PART_BYTES_MAX
                or self.joined_bytes + operation.length > JOINED_BYTES_MAX
            ):
                self.end_piece()
            self.parts.append(operation.data)
            self.joined_bytes += operation.length
            if operation.length > JOINED_PART_BYTES_MAX:
                self.end_piece()
        return 0

    cdef dict change_numbers(self):
        """Return the number of the last append that changed each value; None if it is ``last``."""
        cdef AppendOperation operation
        if self.complete is self.last or not self.values:
            return None
        numbers = dict.fromkeys(self.values, self.complete.sequence_number)
        for operation in self.partial:
            number = operation.sequence_number
            for attribute_id in operation.attribute_values:
                numbers[attribute_id] = number
        return numbers

    cdef int end_piece(self) except -1:
        if self.parts:
            if len(self.parts) == 1:
                self.pieces.append(self.parts[0])
            else:
                self.pieces.append(NO_DATA.join(self.parts))
            self.parts = []
            self.joined_bytes = 0
        return 0


def commit_appends(
    list operations, Py_ssize_t start, metadata, memory_log, read_index, pending, now_ms
):
    """Apply and complete the appends from ``start`` on.

    Stops before the first operation that is no append and returns its index.
    """
    cdef AppendOperation operation
    cdef _Run run = None
    cdef dict runs = {}
    cdef Py_ssize_t end = start
    cdef Py_ssize_t count = len(operations)
    cdef long long segment_id = -1
    while end < count:
        item = operations[end]
        if type(item) is not AppendOperation:
            break
        operation = <AppendOperation>item
        if run is None or operation.segment_id != segment_id:
            segment_id = operation.segment_id
            run = runs.get(segment_id)
            if run is None:
                run = _Run.__new__(_Run)
                runs[segment_id] = run
        run.add(operation)
        end += 1
    if end == start:
        return start
    segments = metadata.segments
    for run in runs.values():
        run.end_piece()
        numbers = run.change_numbers()
        # Apply only the last append, with the values that all appends of the run set: the effect is
        # the same as that of all.
        run.last.attribute_values = run.values
        metadata.apply_append(run.last, now_ms)
        if numbers is not None:
            segments[run.last.segment_id].attribute_memory.set_change_numbers(numbers)
        memory_log.add_range(
            run.last.segment_id,
            run.first.offset,
            run.last.offset + run.last.length,
            run.first.sequence_number,
        )
        if run.pieces:
            add_pieces(segments[run.last.segment_id], run, read_index)
    operation = <AppendOperation>operations[end - 1]
    metadata.sequence_number = operation.sequence_number
    for run in runs.values():
        release(pending, run)
    while start < end:
        operation = <AppendOperation>operations[start]
        # The bytes are in the cache now: drop the connection's copy.
        operation.data = NO_DATA
        operation.on_complete(None, operation.offset + operation.length)
        start += 1
    return end


cdef int add_pieces(object segment, _Run run, object read_index) except -1:
    """Add the bytes to the cache, whose metadata already have them; this wakes tail reads."""
    cdef long long offset = run.first.offset
    cdef bint several = len(run.pieces) > 1
    for piece in run.pieces:
        if several:
            segment.length = offset + <Py_ssize_t>len(piece)
        read_index.append(segment, offset, piece)
        offset += <Py_ssize_t>len(piece)
    return 0


cdef int release(object pending, _Run run) except -1:
    """Release the pending state of all appends of a run at once."""
    if run.count > 1:
        segment = pending.segments.get(run.last.segment_id)
        if segment is not None:
            segment.in_flight -= run.count - 1
    pending.release(run.last.segment_id, run.last.sequence_number)
    return 0
