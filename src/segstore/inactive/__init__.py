"""Segments that are not in memory: how they leave it, and how they come back."""
