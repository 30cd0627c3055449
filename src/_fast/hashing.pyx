"""The hashes that clients, controller and segment store must agree on."""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from cpython.unicode cimport PyUnicode_DATA, PyUnicode_GET_LENGTH, PyUnicode_KIND
from libc.stdint cimport int32_t, int64_t, uint32_t, uint64_t
from libc.string cimport memcpy

cdef enum:
    # Of a text that is laid out as UTF-16 on the stack: longer keys are rare.
    SHORT_LETTERS = 128

cdef double TWO_TO_52 = 4503599627370496.0
cdef uint64_t C1 = 0x87C37B91114253D5ULL
cdef uint64_t C2 = 0x4CF5AD432745937FULL


cdef inline uint64_t rotate(uint64_t value, int bits) noexcept nogil:
    return (value << bits) | (value >> (64 - bits))


cdef inline uint64_t finish(uint64_t value) noexcept nogil:
    value ^= value >> 33
    value *= 0xFF51AFD7ED558CCDULL
    value ^= value >> 33
    value *= 0xC4CEB9FE1A85EC53ULL
    return value ^ (value >> 33)


cdef inline uint64_t load(const unsigned char* data) noexcept nogil:
    # The format is little endian, as is every machine for which this is built.
    cdef uint64_t value
    memcpy(&value, data, 8)
    return value


cdef void murmur(
    const unsigned char* data, Py_ssize_t length, int64_t seed, uint64_t* halves
) noexcept nogil:
    """Store both halves of the hash of so many bytes."""
    cdef Py_ssize_t blocks = length // 16
    cdef Py_ssize_t rest = length % 16
    cdef Py_ssize_t index
    cdef uint64_t first = <uint64_t>seed
    cdef uint64_t second = <uint64_t>seed
    cdef uint64_t low, high
    cdef unsigned char tail[16]
    cdef const unsigned char* source
    for index in range(blocks):
        source = data + index * 16
        low = load(source)
        high = load(source + 8)
        first ^= rotate(low * C1, 31) * C2
        first = (rotate(first, 27) + second) * 5 + 0x52DCE729
        second ^= rotate(high * C2, 33) * C1
        second = (rotate(second, 31) + first) * 5 + 0x38495AB5
    if rest:
        for index in range(16):
            tail[index] = data[blocks * 16 + index] if index < rest else 0
        first ^= rotate(load(&tail[0]) * C1, 31) * C2
        second ^= rotate(load(&tail[8]) * C2, 33) * C1
    first ^= <uint64_t>length
    second ^= <uint64_t>length
    first += second
    second += first
    first = finish(first)
    second = finish(second)
    first += second
    second += first
    halves[0] = first
    halves[1] = second


def murmur3_128(const unsigned char[::1] data not None, int64_t seed=0):
    """Return the MurmurHash3 x64 128 of ``data``: 16 bytes, both halves little endian.

    The seed starts both halves; a negative one is sign-extended.
    """
    cdef Py_ssize_t length = data.shape[0]
    cdef uint64_t halves[2]
    murmur(&data[0] if length else NULL, length, seed, halves)
    return PyBytes_FromStringAndSize(<char*>&halves[0], 16)


def place_text(text, int64_t seed):
    """Return the place in [0, 1) of a text, by the MurmurHash3 of its UTF-16 units: the upper 52
    bits of the first half. Units without a partner count as they are."""
    cdef Py_ssize_t length
    cdef unsigned char units[2 * SHORT_LETTERS]
    cdef const unsigned char* letters
    cdef const unsigned char* source = units
    cdef uint64_t halves[2]
    cdef Py_ssize_t index
    cdef bytes encoded
    # A text may be of a class of its own, such as that of an enumeration.
    if not isinstance(text, str):
        raise TypeError(f"a text is wanted, not {type(text).__name__}")
    length = PyUnicode_GET_LENGTH(text)
    if PyUnicode_KIND(text) == 1 and length <= SHORT_LETTERS:
        letters = <const unsigned char*>PyUnicode_DATA(text)
        for index in range(length):
            units[2 * index] = letters[index]
            units[2 * index + 1] = 0
    else:
        encoded = text.encode("utf-16-le", "surrogatepass")
        source = <const unsigned char*>PyBytes_AS_STRING(encoded)
        length = PyBytes_GET_SIZE(encoded) // 2
    murmur(source, 2 * length, seed, halves)
    return <double>(halves[0] >> 12) / TWO_TO_52


def consistent_hash(int64_t value, int bucket_count):
    """Return the bucket, of ``bucket_count``, of a 64-bit hash; a new bucket moves few values."""
    cdef uint64_t state = <uint64_t>value
    cdef int candidate = 0
    cdef int32_t draw
    cdef double next_bucket
    if bucket_count <= 0:
        raise ValueError("bucket_count must be positive")
    while True:
        state = state * 2862933555777941757ULL + 1
        # The peers add one in 32 bits: the greatest draw wraps round and ends the walk.
        draw = <int32_t>(<uint32_t>(state >> 33) + 1U)
        next_bucket = (candidate + 1) / (draw / 2147483648.0)
        if next_bucket < 0 or next_bucket >= bucket_count:
            return candidate
        candidate = <int>next_bucket
