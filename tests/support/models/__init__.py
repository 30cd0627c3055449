"""Models: a container and a store in their plainest form, and what models are given."""
