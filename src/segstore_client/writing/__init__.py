"""Buffers what is written, and sends it to the segments."""
