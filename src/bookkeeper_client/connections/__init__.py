"""Connections to bookies over TCP."""
