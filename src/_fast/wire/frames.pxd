"""The scanner of frames, for modules that call it without Python in between."""

# Return the end of the next frame, or 0 when it is incomplete; raises FrameError for a bad header.
# ``code`` gets the frame's type. ``accepted`` has 256 bytes.
cdef Py_ssize_t next_frame(
    const unsigned char *data,
    Py_ssize_t position,
    Py_ssize_t end,
    const unsigned char *accepted,
    Py_ssize_t payload_max,
    int *code,
) except -1

cdef int int32_at(const unsigned char *data, Py_ssize_t position) noexcept nogil

cdef long long int64_at(const unsigned char *data, Py_ssize_t position) noexcept nogil
