"""How busy segments are, and telling controllers of those that their stream should scale for."""
