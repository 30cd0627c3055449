"""Stream cuts of times and words, and the segments that are read as one piece."""
