"""Streams that are files of bytes, without events: a writer, a reader, and their segment."""
