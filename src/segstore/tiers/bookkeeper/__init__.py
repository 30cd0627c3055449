"""Tier 1 on Apache BookKeeper: a container's log is a list of ledgers."""

from segstore.tiers.bookkeeper.factory import BookKeeperLogFactory, BookKeeperLogSettings

__all__ = ["BookKeeperLogFactory", "BookKeeperLogSettings"]
