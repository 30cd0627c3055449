"""Compiled inner loops: pure work over buffers. Knows no trio, no sockets and no files."""
