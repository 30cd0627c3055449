"""What tests of users of ZooKeeper need: a server in memory, and what every session has to do."""
