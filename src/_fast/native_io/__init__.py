"""Calls of the kernel for files, without the interpreter's lock."""
