"""Stream cuts: of times and words, of reader groups, and the segments they are found by."""
