"""Table segments: key-value tables on top of a segment container."""
