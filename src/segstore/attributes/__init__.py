"""Attributes of segments in tier 2: the index of each segment, and reads from memory and index."""
