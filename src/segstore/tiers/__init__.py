"""Tier 1 and tier 2 behind small interfaces: the only rooms that touch disks and object stores."""
