"""Tier 1 and tier 2: only this package uses disks, bookies and object stores for data."""
