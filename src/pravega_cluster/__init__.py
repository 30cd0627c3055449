"""The records of a cluster in ZooKeeper: its living hosts, and the containers of each one."""
