"""Key-value tables."""
