"""Tier 1 on Apache BookKeeper: a container's log is a list of ledgers."""

from segstore.tiers.bookkeeper.factory import BookKeeperLogSettings, open_bookkeeper_logs

__all__ = ["BookKeeperLogSettings", "open_bookkeeper_logs"]
