"""The read index: the places of a segment's bytes, and the reads that wait for more bytes."""
