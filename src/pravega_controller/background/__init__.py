"""Background work, and the members of the cluster of controllers that share it."""
