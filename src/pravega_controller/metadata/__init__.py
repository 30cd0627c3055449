"""The controller's records in the segment store's tables, and how they are changed safely."""
