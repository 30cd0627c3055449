"""Reader groups: their state, how far they lag, and other positions for them."""
