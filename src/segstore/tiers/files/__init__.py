"""Tier 2 in a directory: one file per chunk."""
