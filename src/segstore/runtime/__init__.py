"""The services of a process's event loop and machine: deferred calls, clock, limits."""
