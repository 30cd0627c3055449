"""Servers that a benchmark can start on loopback: ours, and those measured beside it."""
