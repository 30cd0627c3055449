"""Retention: rounds that truncate streams by their policies."""
