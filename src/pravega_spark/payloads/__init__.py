"""Converts events to columns: JSON and Avro events, and the segment and offset of each event."""
