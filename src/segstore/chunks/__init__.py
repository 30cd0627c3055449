"""Segments in tier 2: what the storage writer writes and historical reads read."""
