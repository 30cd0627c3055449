"""What hosts of a cluster tell each other in ZooKeeper: who lives, who has which container."""
