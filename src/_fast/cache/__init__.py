"""The streaming cache and the read index, in memory alone."""
