"""Declares the calls of the kernel and the C library that ``kernel`` makes, for their build.

cffi compiles them, so that the C compiler determines the layout of structures.
"""

from __future__ import annotations

from cffi import FFI

DECLARATIONS = """
int create_timer(void);
int set_timer(int descriptor, int64_t nanoseconds);
int kill_with_parent(void);
int64_t clock_error_us(void);
void return_free_memory(void);
"""

builder = FFI()
builder.cdef(DECLARATIONS)
builder.set_source(
    "segstore.runtime._kernel",
    """
    #include <malloc.h>
    #include <signal.h>
    #include <stdint.h>
    #include <sys/prctl.h>
    #include <sys/timerfd.h>
    #include <sys/timex.h>

    static int create_timer(void)
    {
        return timerfd_create(CLOCK_MONOTONIC, TFD_NONBLOCK | TFD_CLOEXEC);
    }

    static int set_timer(int descriptor, int64_t nanoseconds)
    {
        struct itimerspec timer = {{0, 0}, {nanoseconds / 1000000000, nanoseconds % 1000000000}};
        return timerfd_settime(descriptor, 0, &timer, NULL);
    }

    static int kill_with_parent(void)
    {
        return prctl(PR_SET_PDEATHSIG, SIGKILL, 0, 0, 0);
    }

    static int64_t clock_error_us(void)
    {
        struct timex clock = {0};
        int state = adjtimex(&clock);
        if (state < 0)
            return -1;
        if (state == TIME_ERROR || clock.status & STA_UNSYNC)
            return INT64_MAX;
        return clock.maxerror;
    }

    static void return_free_memory(void)
    {
    #ifdef __GLIBC__
        malloc_trim(0);
    #endif
    }
    """,
)
