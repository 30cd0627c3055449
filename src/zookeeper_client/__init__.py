"""A session with ZooKeeper on trio: a thin layer over kazoo, and a server in memory for tests."""
