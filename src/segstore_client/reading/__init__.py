"""Fetches the bytes of segments ahead of their readers."""
