"""Helps to test code that uses ZooKeeper: a server in memory, and tests of each kind of session."""
