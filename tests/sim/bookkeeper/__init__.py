"""A ledger's writer, its recoveries, and the bookies between them, simulated from seeds."""
