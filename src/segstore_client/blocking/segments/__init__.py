"""Segments, as clients that block ask for them: their bytes, and what else stores know of them."""
