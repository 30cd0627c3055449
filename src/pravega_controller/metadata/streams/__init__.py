"""Streams: their present state, history, names, changes and subscribers."""
