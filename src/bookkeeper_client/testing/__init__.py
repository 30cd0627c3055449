"""Bookies in memory, for tests of what is built on ledgers."""
