"""Segment attributes: ids, update verbs, and the index that keeps them."""
