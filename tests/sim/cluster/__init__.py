"""Stores, controllers, bookies and the ZooKeeper of a cluster, simulated from seeds."""
