"""Transactions: their begin, lease, commit or abort, and the archive of their outcomes."""
