"""Segments as chunks in tier 2: the storage writer writes them, reads of history read them."""
