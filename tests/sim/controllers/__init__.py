"""Two controllers and their clients on one segment store, simulated from seeds."""
