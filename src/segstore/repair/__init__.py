"""Finding damage in tier 2, and recovering what is left of a store."""
