"""A segment store's process: its configuration, data directory, tiers and containers."""
