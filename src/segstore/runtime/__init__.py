"""What a process gets from its event loop and its machine: deferred calls, clock, limits."""
