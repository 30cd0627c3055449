"""Rules as pure functions: key ranges, epochs, cuts, and the decisions of policies."""
