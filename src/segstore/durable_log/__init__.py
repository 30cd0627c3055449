"""The durable log of a container: validation, data frames, group commit, recovery."""
