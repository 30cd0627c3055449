"""A machine in memory that loses power: its disk, the journal on it, an object store."""
