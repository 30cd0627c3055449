"""Helps tests of users of ZooKeeper: a server in memory, and the behavior of every session."""
