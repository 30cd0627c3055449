"""The state of a container: operations, metadata, records, attributes."""
