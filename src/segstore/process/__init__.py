"""The process of a segment store: its configuration, its tiers and its containers."""
