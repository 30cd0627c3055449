"""Watermarks: the times that writers send, and the watermarks that readers get."""
