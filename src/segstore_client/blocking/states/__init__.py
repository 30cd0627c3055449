"""States that programs share by conditional appends to one segment."""
