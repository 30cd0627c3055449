"""Drives official clients against a server: processes, builds and the checker."""
