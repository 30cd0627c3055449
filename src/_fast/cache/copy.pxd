"""The copy loops of the streaming cache, in C.

Invariants:
1. `copy_bytes` and `copy_into_blocks` have the effect of memcpy for every length; only their speed
   differs. Held by ``TestCacheModel``.
"""

cdef extern from *:
    """
    #include <stddef.h>
    #include <string.h>
    #ifdef __x86_64__
    #include <immintrin.h>

    /* Blocks begin at page boundaries and large heap buffers 16 bytes after one. At such distances
     * glibc's memcpy (2.36, by rep movsb) is eight times slower on Zen processors than these loops
     * at any distance. Long copies continue in two places at once, because memory then serves more
     * requests at a time. */

    __attribute__((target("avx2")))
    static inline void copy_128_avx2(unsigned char *to, const unsigned char *from) {
        __m256i a = _mm256_loadu_si256((const __m256i *)from);
        __m256i b = _mm256_loadu_si256((const __m256i *)(from + 32));
        __m256i c = _mm256_loadu_si256((const __m256i *)(from + 64));
        __m256i d = _mm256_loadu_si256((const __m256i *)(from + 96));
        _mm256_storeu_si256((__m256i *)to, a);
        _mm256_storeu_si256((__m256i *)(to + 32), b);
        _mm256_storeu_si256((__m256i *)(to + 64), c);
        _mm256_storeu_si256((__m256i *)(to + 96), d);
    }

    static inline void copy_128_sse2(unsigned char *to, const unsigned char *from) {
        __m128i lines[8];
        for (int line = 0; line < 8; line++)
            lines[line] = _mm_loadu_si128((const __m128i *)from + line);
        for (int line = 0; line < 8; line++)
            _mm_storeu_si128((__m128i *)to + line, lines[line]);
    }

    #define COPY_PAIRS_BYTES_MIN 8192

    /* Copies whole groups of 128 bytes and returns how many bytes that makes. */
    #define COPY_GROUPS(copy_128, to, from, length) do {                            \
        size_t half = (length) >= COPY_PAIRS_BYTES_MIN ? (length) / 256 * 128 : 0;  \
        size_t done = 0;                                                            \
        for (; done < half; done += 128) {                                          \
            copy_128((to) + done, (from) + done);                                   \
            copy_128((to) + half + done, (from) + half + done);                     \
        }                                                                           \
        for (done = 2 * half; done + 128 <= (length); done += 128)                  \
            copy_128((to) + done, (from) + done);                                   \
        return done;                                                                \
    } while (0)

    __attribute__((target("avx2")))
    static size_t copy_groups_avx2(unsigned char *to, const unsigned char *from, size_t length) {
        COPY_GROUPS(copy_128_avx2, to, from, length);
    }

    static size_t copy_groups_sse2(unsigned char *to, const unsigned char *from, size_t length) {
        COPY_GROUPS(copy_128_sse2, to, from, length);
    }

    /* `to` is at a multiple of 16. Past the processor's caches: no line is read in order to be
     * overwritten, and what others have in the caches stays. Writing and reading again takes as
     * long as through the caches when nothing comes in between, else less. No fence: the thread
     * that wrote sees its writes in order, and another gets to them through a lock (the
     * interpreter's), which empties the write-combining buffers as a fence would. */
    static size_t stream_lines(unsigned char *to, const unsigned char *from, size_t length) {
        size_t done = 0;
        for (; done + 64 <= length; done += 64) {
            __m128i a = _mm_loadu_si128((const __m128i *)(from + done));
            __m128i b = _mm_loadu_si128((const __m128i *)(from + done + 16));
            __m128i c = _mm_loadu_si128((const __m128i *)(from + done + 32));
            __m128i d = _mm_loadu_si128((const __m128i *)(from + done + 48));
            _mm_stream_si128((__m128i *)(to + done), a);
            _mm_stream_si128((__m128i *)(to + done + 16), b);
            _mm_stream_si128((__m128i *)(to + done + 32), c);
            _mm_stream_si128((__m128i *)(to + done + 48), d);
        }
        return done;
    }
    #endif

    #define LOOP_BYTES_MIN 2048
    #define STREAM_BYTES_MIN 8192  /* less is read again from the caches more quickly */

    static void copy_bytes(void *to, const void *from, size_t length) {
        size_t done = 0;
    #ifdef __x86_64__
        if (length >= LOOP_BYTES_MIN)
            done = __builtin_cpu_supports("avx2")
                ? copy_groups_avx2((unsigned char *)to, (const unsigned char *)from, length)
                : copy_groups_sse2((unsigned char *)to, (const unsigned char *)from, length);
    #endif
        memcpy((unsigned char *)to + done, (const unsigned char *)from + done, length - done);
    }

    /* Into blocks, from the beginning of one. */
    static void copy_into_blocks(void *to, const void *from, size_t length) {
        size_t done = 0;
    #ifdef __x86_64__
        if (length >= STREAM_BYTES_MIN)
            done = stream_lines((unsigned char *)to, (const unsigned char *)from, length);
    #endif
        copy_bytes((unsigned char *)to + done, (const unsigned char *)from + done, length - done);
    }

    /* Have the processor look for the beginning of a block while it looks for other things. */
    static inline void prefetch_block(const unsigned char *start) {
        for (int line = 0; line < 4; line++)
            __builtin_prefetch(start + 64 * line);
    }
    """
    void prefetch_block(const unsigned char *start) noexcept nogil
    void copy_bytes(void *to, const void *source, size_t length) noexcept nogil
    void copy_into_blocks(void *to, const void *source, size_t length) noexcept nogil
