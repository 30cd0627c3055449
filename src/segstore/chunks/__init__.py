"""Segments as chunks in tier 2. The storage writer writes them, and reads of history read them."""
