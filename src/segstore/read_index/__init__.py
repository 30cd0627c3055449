"""The read index: where each byte of a segment can be read from, and who waits for more."""
