"""A cluster's records in ZooKeeper: its running hosts, and the containers of each."""
