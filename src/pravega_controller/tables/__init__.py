"""Key-value tables: the steps that create and delete them."""
