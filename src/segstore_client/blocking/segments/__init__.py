"""Segments, for programs that block: reads of their bytes, their lengths and attributes."""
