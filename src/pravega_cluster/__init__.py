"""The records of a cluster in ZooKeeper: which hosts live, and which containers each one has."""
