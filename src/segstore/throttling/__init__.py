"""How writers are slowed down, and held back, while the store falls behind."""
