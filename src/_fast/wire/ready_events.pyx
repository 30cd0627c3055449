"""The events that a reader has ready, given to a loop without a call in Python for each.

Owns: ``ReadyEvents``, for ``async for``, and ``ReadyLoop``, for ``for``. Python awaits whatever
``__anext__`` returns: here it is the object itself, which ends at once, as a coroutine does that
does not wait. The event is taken when it is awaited, so that a call of ``__anext__`` whose result
is dropped loses nothing. Interrupts come between two steps of Python: an event that a step of a
loop takes is the loop's when that step ends.

Invariants:
1. Events come out in order, each once, in whatever way they are taken. Held by
   ``test_events_come_in_order_however_they_are_taken``.
2. When what is ``next``, or the ``rest``, is deleted, the program has it, and not before. Held by
   ``test_what_is_next_is_there_until_it_is_deleted``.
3. When it is time, or no event is ready, the reader is asked instead. Held by
   ``test_the_reader_is_asked_when_nothing_is_ready_or_it_is_time``.
"""

cimport cython
from cpython.object cimport PyObject
from cpython.ref cimport Py_INCREF
from libc.math cimport INFINITY
from posix.time cimport clock_gettime, timespec

cdef extern from "<time.h>" nogil:
    # It has steps of a few milliseconds, and costs a fourth of the exact one.
    int CLOCK_MONOTONIC_COARSE

cdef extern from "Python.h":
    ctypedef enum PySendResult:
        PYGEN_RETURN
        PYGEN_ERROR

    ctypedef PySendResult (*sendfunc)(PyObject *, PyObject *, PyObject **) except PYGEN_ERROR

    ctypedef struct PyAsyncMethods:
        sendfunc am_send

    ctypedef struct AwaitableType "PyTypeObject":
        PyAsyncMethods *tp_as_async

cdef extern from *:
    # The caller's NULL, which Cython returns for a bare StopIteration, then carries the value.
    """
    static void set_result(PyObject *value) { PyErr_SetObject(PyExc_StopIteration, value); }
    """
    void set_result(object value) noexcept


@cython.final
cdef class ReadyEvents:
    """See ready_events.pyi."""

    cdef readonly object first
    cdef readonly object last
    cdef public double due
    cdef public bint is_unsure
    cdef list _left
    """In reverse."""
    cdef object _ask
    cdef object _clock

    def __init__(self, ask=None, clock=None):
        self.due = INFINITY
        self._left = []
        self._ask = ask
        self._clock = clock

    def __len__(self):
        return len(self._left)

    def __aiter__(self):
        return self

    def __anext__(self):
        return self if self.look() else self._ask()

    def __await__(self):
        return self

    def __iter__(self):
        return self

    def __next__(self):
        set_result(self.take())
        raise StopIteration

    @property
    def has_next(self):
        return self.look()

    cdef bint look(self) except -1:
        cdef timespec now
        if not self._left or self.is_unsure:
            return False
        if self.due == INFINITY:
            return True
        if self._clock is not None:
            return <double>self._clock() < self.due
        clock_gettime(CLOCK_MONOTONIC_COARSE, &now)
        return now.tv_sec + now.tv_nsec * 1e-9 < self.due

    @property
    def next(self):
        if not self._left:
            raise IndexError("no event is ready")
        return self._left[len(self._left) - 1]

    @next.deleter
    def next(self):
        self.take()

    @property
    def rest(self):
        return self._left[::-1]

    @rest.deleter
    def rest(self):
        self.take_all()

    cpdef take(self):
        self.first = self.last = event = self._left.pop()
        return event

    def take_all(self):
        cdef list taken = self._left
        if not taken:
            raise IndexError("no event is ready")
        self._left = []
        self.last = taken[0]
        taken.reverse()
        self.first = taken[0]
        return taken

    def replace(self, list events not None):
        self._left = events[::-1]

    def release(self):
        self.first = self.last = None


cdef PySendResult send(PyObject *ready, PyObject *sent, PyObject **result) except PYGEN_ERROR:
    """Do as ``__next__``, for Python 3.11, which then needs no exception for the result."""
    result[0] = NULL
    event = (<ReadyEvents>ready).take()
    Py_INCREF(event)
    result[0] = <PyObject *>event
    return PYGEN_RETURN


(<AwaitableType *>ReadyEvents).tp_as_async.am_send = send


@cython.final
cdef class ReadyLoop:
    """See ready_events.pyi."""

    cdef ReadyEvents _ready
    cdef object _ask

    def __init__(self, ReadyEvents ready not None, ask):
        self._ready = ready
        self._ask = ask

    def __iter__(self):
        return self

    def __next__(self):
        if self._ready.look():
            return self._ready.take()
        event = self._ask()
        if event is None:
            raise StopIteration
        return event
