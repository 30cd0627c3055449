"""The storage writer: moves committed operations to tier 2 and truncates the log."""
