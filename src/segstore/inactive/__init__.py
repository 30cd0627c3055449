"""Inactive segments, which are not in memory: eviction, records and activation."""
