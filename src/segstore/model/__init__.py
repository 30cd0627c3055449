"""What a container's state is made of: operations, metadata, records, attributes."""
