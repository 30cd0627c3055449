"""Encodes and decodes requests, replies and entries. No input or output."""
