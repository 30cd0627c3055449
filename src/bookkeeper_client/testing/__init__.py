"""Bookies in memory, for tests of code that uses ledgers."""
