"""Segments' attributes in tier 2: the index of each, and reads through memory and index."""
