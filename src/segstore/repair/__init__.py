"""Ways back from damage: looking for it in tier 2, and recovering what is left of a store."""
