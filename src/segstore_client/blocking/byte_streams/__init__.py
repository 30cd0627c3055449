"""Byte streams: streams of one segment without events."""
